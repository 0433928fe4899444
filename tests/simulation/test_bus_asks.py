"""Questions, answers and what nobody hears, on a real nats-server and in memory."""

from __future__ import annotations

import asyncio

import nats.errors
import pytest
from nats import micro
from nats.aio.msg import Msg

from shared.bus import Bus, Delivery
from shared.bus.bulk import BulkConnection
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import NoAnswer, NoListener, Overloaded
from shared.messages import AuditReport, AuditRequest, Cancel, Envelope
from tests.simulation.buses import EitherBus
from tests.simulation.clients import ANSWER_S, Told, raw, told
from tests.support.wait import until

DECODE = inbox("decode", "decode-0")
REPORT = AuditReport("decode", "decode-0", 1, ())


def soon() -> Deadline:
    return Deadline.after(ANSWER_S)


# ---- nats-py ------------------------------------------------------------------------------------------


async def test_a_request_gets_its_answer_and_headers_go_both_ways(bus: EitherBus) -> None:
    async with told(bus.url) as server, told(bus.url) as client:

        async def answer(message: Msg) -> None:
            await message.respond(b"%b of %b" % (message.data, repr(message.headers).encode()))

        await server.client.subscribe("ask", cb=answer)
        await server.settle()
        reply = await client.client.request("ask", b"x", timeout=ANSWER_S, headers={"a": "1", "b": "ü"})
        assert reply.data.decode() == "x of {'a': '1', 'b': 'ü'}"
        assert (await client.client.request("ask", b"", timeout=ANSWER_S)).data == b" of None"


async def test_a_message_may_be_nothing_but_headers(bus: EitherBus) -> None:
    async with told(bus.url) as client:
        ear = await client.hear("a")
        await client.say("a", b"", headers={"k": "v"})
        assert [(one.data, one.headers) for one in ear.heard] == [(b"", {"k": "v"})]


async def test_headers_are_left_out_for_who_cannot_read_them(bus: EitherBus) -> None:
    async with raw(bus.url, headers=False, no_responders=False) as plain, told(bus.url) as client:
        plain.say(b"SUB a 1\r\n")
        await plain.pong()
        await client.say("a", b"body", headers={"k": "v"})
        assert await plain.pong() == [b"MSG a 1 4", b"body"]


async def test_headers_of_who_said_it_has_none_end_its_connection(bus: EitherBus) -> None:
    async with raw(bus.url, headers=False, no_responders=False) as plain:
        plain.say(b"HPUB a 12 13\r\nNATS/1.0\r\n\r\nx\r\n")
        assert await plain.rest() == []


@pytest.mark.parametrize("gone", ["never there", "unsubscribed", "closed"])
async def test_who_asks_nobody_hears_so_at_once(bus: EitherBus, gone: str) -> None:
    async with told(bus.url) as client, told(bus.url) as server:
        if gone != "never there":
            ear = await server.hear("ask")
            await (ear.subscription.unsubscribe() if gone == "unsubscribed" else server.client.close())
        if gone == "unsubscribed":
            await server.settle()
        await until(lambda: is_unheard(client, "ask"))


async def is_unheard(client: Told, subject: str) -> bool:
    """Return whether the server says that nobody listens: it needs a moment to see that a client closes."""
    try:
        await client.client.request(subject, timeout=0.1)
    except nats.errors.NoRespondersError:
        return True
    except nats.errors.TimeoutError:
        return False
    raise AssertionError("somebody has answered")


async def test_what_says_that_nobody_listens_names_the_subject(bus: EitherBus) -> None:
    async with told(bus.url) as client:
        ear = await client.hear("in.*")
        await client.say("ask.nobody", b"x", reply="in.7")
        (one,) = ear.heard
        assert (one.subject, one.data) == ("in.7", b"")
        assert one.headers is not None
        assert (one.headers["Status"], one.headers["Nats-Subject"]) == ("503", "ask.nobody")


async def test_nobody_hears_that_nobody_listens_who_has_not_asked_for_it(bus: EitherBus) -> None:
    async with raw(bus.url, no_responders=False) as client:
        client.say(b"SUB in 1\r\nPUB nobody in 1\r\nx\r\n")
        assert await client.pong() == []


async def test_only_an_ear_of_the_askers_own_hears_that_nobody_listens(bus: EitherBus) -> None:
    async with told(bus.url) as client, told(bus.url) as other:
        ear, grouped = await other.hear("in"), await client.hear("in", queue="g")
        await client.say("nobody", b"x", reply="in")
        await other.settle()
        assert ear.data == grouped.data == []


async def test_a_member_of_a_group_is_somebody(bus: EitherBus) -> None:
    async with told(bus.url) as client:
        ear, inbox_ear = await client.hear("ask", queue="g"), await client.hear("in")
        await client.say("ask", b"x", reply="in")
        assert ear.data == [b"x"]
        assert inbox_ear.data == []


async def test_an_own_question_that_is_not_echoed_has_nobody_who_listens(bus: EitherBus) -> None:
    async with told(bus.url, no_echo=True) as client:
        await client.hear("ask")
        with pytest.raises(nats.errors.NoRespondersError):
            await client.client.request("ask", timeout=ANSWER_S)


async def test_a_question_without_an_answer_times_out(bus: EitherBus) -> None:
    async with told(bus.url) as client, told(bus.url) as deaf:
        await deaf.hear("ask")
        with pytest.raises(nats.errors.TimeoutError):
            await client.client.request("ask", timeout=0.05)


async def test_the_first_of_several_answers_counts(bus: EitherBus) -> None:
    async with told(bus.url) as client, told(bus.url) as server:

        async def answer(message: Msg) -> None:
            for data in (b"1", b"2", b"3"):
                await message.respond(data)

        await server.client.subscribe("ask", cb=answer)
        await server.settle()
        for _ in range(2):
            assert (await client.client.request("ask", timeout=ANSWER_S)).data == b"1"


async def test_an_old_style_question_has_an_inbox_for_one_message(bus: EitherBus) -> None:
    async with told(bus.url) as client, told(bus.url) as server:

        async def answer(message: Msg) -> None:
            await message.respond(b"1")
            await message.respond(b"2")

        await server.client.subscribe("ask", cb=answer)
        await server.settle()
        reply = await client.client.request("ask", timeout=ANSWER_S, old_style=True)
        assert reply.data == b"1"


async def test_services_are_listed_as_stock_tools_ask_for_them(bus: EitherBus) -> None:
    async with told(bus.url) as client, told(bus.url) as server:
        service = await micro.add_service(server.client, name="penstock-decode", version="1.0.0")
        await server.settle()
        reply = await client.client.request("$SRV.PING", timeout=ANSWER_S)
        assert b'"name": "penstock-decode"' in reply.data or b'"name":"penstock-decode"' in reply.data
        await service.stop()
        await server.settle()
        with pytest.raises(nats.errors.NoRespondersError):
            await client.client.request("$SRV.PING.penstock-decode", timeout=ANSWER_S)


# ---- our own messages -----------------------------------------------------------------------------------


async def test_an_ask_is_answered_and_a_failure_keeps_its_type(bus: EitherBus) -> None:
    asker = await Bus.connect(bus.url, name="asker", sender="gateway-0")
    asked = await Bus.connect(bus.url, name="asked", sender="decode-0")
    answers: list[object] = [REPORT, Overloaded("full", retry_after_ms=7)]
    senders: list[str] = []

    def receive(delivery: Delivery) -> None:
        senders.append(delivery.sender)
        answer = answers.pop(0)
        if isinstance(answer, Overloaded):
            raise answer
        tasks.append(asyncio.create_task(asked.reply(delivery.envelope, REPORT)))

    tasks: list[asyncio.Task[None]] = []
    try:
        await asked.serve(DECODE, receive)
        assert await asker.ask(DECODE, AuditRequest(), Envelope(), soon()) == REPORT
        with pytest.raises(Overloaded) as refused:
            await asker.ask(DECODE, AuditRequest(), Envelope(), soon())
        assert refused.value.retry_after_ms == 7
        assert senders == ["gateway-0"] * 2
        with pytest.raises(NoListener):
            await asker.ask(inbox("decode", "decode-1"), AuditRequest(), Envelope(), soon())
    finally:
        await asker.close()
        await asked.close()


async def test_an_ask_that_nobody_answers_ends_at_its_deadline(bus: EitherBus) -> None:
    both = await Bus.connect(bus.url, name="both")
    got: list[Delivery] = []
    try:
        await both.serve(DECODE, got.append)
        with pytest.raises(NoAnswer):
            await both.ask(DECODE, AuditRequest(), Envelope(), Deadline.after(0.05))
    finally:
        await both.close()


async def test_messages_reach_a_receiver_in_order_and_count_for_nothing_after_close(bus: EitherBus) -> None:
    sender = await Bus.connect(bus.url, name="sender")
    receiver = await Bus.connect(bus.url, name="receiver")
    got: list[str] = []
    await receiver.serve(DECODE, lambda delivery: got.append(getattr(delivery.message, "reason", "?")))
    for number in range(100):
        await sender.publish(DECODE, Cancel(str(number)))
    await sender.close()
    await until(lambda: len(got) == 100)
    assert got == [str(number) for number in range(100)]
    await receiver.close()


class Landing:
    """A sink that keeps what lands."""

    header_bytes = 4

    def __init__(self) -> None:
        self.bodies: list[bytearray] = []
        self.count = 0

    def open(self, header: bytes, body_bytes: int) -> list[memoryview]:  # noqa: ARG002 - a sink
        self.bodies.append(bytearray(body_bytes))
        return [memoryview(self.bodies[-1])]

    def done(self) -> None:
        self.count += 1

    def lost(self) -> None:
        raise AssertionError("the connection went away")


async def test_chunks_of_kv_land_whole_in_the_memory_of_their_sink(bus: EitherBus) -> None:
    sender = await BulkConnection.connect(bus.url, name="prefill/prefill-0/kv")
    receiver = await BulkConnection.connect(bus.url, name="decode/decode-0/kv")
    sink = Landing()
    try:
        await receiver.serve("penstock.kv.decode-0.7", sink)
        for size in (1, 70_000, sender.max_payload - 4):
            await sender.send("penstock.kv.decode-0.7", b"head", [memoryview(bytes([size % 251]) * size)])
        await until(lambda: sink.count == 3)
        assert sink.bodies == [bytes([n % 251]) * n for n in (1, 70_000, sender.max_payload - 4)]
    finally:
        await sender.close()
        await receiver.close()
