"""Messages over a real nats-server: asking, answering, refusing, and surviving garbage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgpack
import nats
import pytest

from shared.bus import Bus, Delivery, codec
from shared.bus.connection import Connection
from shared.bus.nats_server import NatsServer
from shared.bus.subjects import NOBODY, everything_at, inbox, subject_of
from shared.deadline import Deadline
from shared.errors import (
    DeadlineExpired,
    InvalidRequest,
    NoAnswer,
    NoListener,
    Overloaded,
    PenstockError,
    ProtocolError,
    TooLarge,
    Unavailable,
)
from shared.messages import (
    MEANING_VERSION,
    Accepted,
    Cancel,
    Envelope,
    Failure,
    Message,
    Retrieve,
    Snapshot,
    SnapshotRequest,
)
from tests.support import metric
from tests.support.wait import until

PREFILL = inbox("prefill", "prefill-0")


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_url, name="asker")
    yield bus
    await bus.close()


class Server:
    """Serves PREFILL on a connection of its own: notes deliveries, answers what `answers` says."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.got: list[Delivery] = []
        self.answers: dict[type[Any], Message] = {}
        self.refusal: Exception | None = None
        self._replies: set[asyncio.Task[None]] = set()

    def receive(self, delivery: Delivery) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.got.append(delivery)
        answer = self.answers.get(type(delivery.message))
        if answer is not None:
            task = asyncio.create_task(self.bus.reply(delivery.envelope, answer))
            self._replies.add(task)
            task.add_done_callback(self._replies.discard)


@pytest.fixture
async def server(nats_url: str) -> AsyncIterator[Server]:
    bus = await Bus.connect(nats_url, name="server")
    server = Server(bus)
    await bus.serve(PREFILL, server.receive)
    yield server
    await bus.close()


def soon() -> Deadline:
    """The deadline of an ask that is over at once, on a busy machine too."""
    return Deadline.after(60.0)


async def alive(bus: Bus, server: Server) -> bool:
    server.refusal = None
    server.answers[SnapshotRequest] = Snapshot(0, b"")
    return await bus.ask(PREFILL, SnapshotRequest(), Envelope(), soon()) == Snapshot(0, b"")


async def test_an_ask_gets_its_reply_and_the_envelope_arrives_whole(bus: Bus, server: Server) -> None:
    server.answers[Cancel] = Accepted(3)
    envelope = bus.envelope("gateway-0.1", 2, soon(), origin="gateway-0")
    assert await bus.ask(PREFILL, Cancel("stop"), envelope, soon()) == Accepted(3)
    (delivery,) = server.got
    assert delivery.message == Cancel("stop")
    assert (delivery.envelope.request_id, delivery.envelope.epoch) == ("gateway-0.1", 2)
    assert delivery.envelope.reply


async def test_a_deadline_arrives_as_the_same_moment(bus: Bus, server: Server) -> None:
    deadline = Deadline.after(30.0)
    await bus.publish(PREFILL, Cancel("stop"), bus.envelope("r", 1, deadline, origin="gateway-0"))
    await until(lambda: server.got)
    there = server.bus.deadline_of(server.got[0].envelope)
    assert there is not None
    assert abs(there.at_s - deadline.at_s) < 0.1  # a busy machine may stop us between two readings


async def test_a_message_without_a_deadline_has_none(bus: Bus) -> None:
    assert bus.deadline_of(bus.envelope("r")) is None


async def test_messages_of_one_sender_arrive_in_order(bus: Bus, server: Server) -> None:
    for epoch in range(500):
        await bus.publish(PREFILL, Cancel("stop"), Envelope(epoch=epoch))
    await until(lambda: len(server.got) == 500)
    assert [delivery.envelope.epoch for delivery in server.got] == list(range(500))


async def test_a_failure_is_raised_again_as_its_own_class(bus: Bus, server: Server) -> None:
    server.answers[Cancel] = Failure("overloaded", "full", "prefill", 40)
    with pytest.raises(Overloaded, match="full") as caught:
        await bus.ask(PREFILL, Cancel("stop"), Envelope(), soon())
    assert (caught.value.hop, caught.value.retry_after_ms) == ("prefill", 40)


async def test_nobody_listening_is_unavailable_at_once_and_names_the_role(bus: Bus) -> None:
    with pytest.raises(NoListener) as caught:
        await bus.ask(inbox("decode", "decode-9"), Cancel("stop"), Envelope(), Deadline.after(60))
    assert caught.value.hop == "decode"


@pytest.mark.thorough(but="unavailable-Unavailable")
@pytest.mark.parametrize(("code", "error"), [("expired", DeadlineExpired), ("unavailable", Unavailable)])
async def test_who_answers_with_an_error_was_not_silent(
    bus: Bus, server: Server, code: str, error: type[PenstockError]
) -> None:
    server.answers[Cancel] = Failure(code, "too late", "prefill", 0)
    with pytest.raises(error) as caught:
        await bus.ask(PREFILL, Cancel("stop"), Envelope(), soon())
    assert type(caught.value) is error


async def test_silence_expires_and_names_the_role(bus: Bus, server: Server) -> None:
    with pytest.raises(NoAnswer) as caught:
        await bus.ask(PREFILL, Cancel("stop"), Envelope(), Deadline.after(0.05))
    assert caught.value.hop == "prefill"
    assert len(server.got) == 1


async def test_an_ask_after_its_deadline_is_not_sent(bus: Bus, server: Server) -> None:
    with pytest.raises(DeadlineExpired):
        await bus.ask(PREFILL, Cancel("stop"), Envelope(), Deadline.after(-1))
    assert await alive(bus, server)
    assert [type(d.message) for d in server.got] == [SnapshotRequest]


async def test_a_cancelled_ask_is_cancelled(bus: Bus, server: Server) -> None:
    asking = asyncio.create_task(bus.ask(PREFILL, Cancel("stop"), Envelope(), soon()))
    await until(lambda: server.got)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_refusing_receiver_answers_the_asker(bus: Bus, server: Server) -> None:
    server.refusal = Overloaded("the mailbox is full", retry_after_ms=100)
    with pytest.raises(Overloaded) as caught:
        await bus.ask(PREFILL, Cancel("stop"), Envelope(), soon())
    assert (caught.value.hop, caught.value.retry_after_ms) == ("prefill", 100)


async def test_a_refused_message_that_nobody_waits_for_is_counted(bus: Bus, server: Server) -> None:
    server.refusal = InvalidRequest("no")
    before = metric.value("penstock_dropped_messages_total", reason="invalid_request")
    await bus.publish(PREFILL, Cancel("stop"))
    await until(
        lambda: metric.value("penstock_dropped_messages_total", reason="invalid_request") == before + 1
    )


async def test_a_receiver_with_a_bug_answers_and_goes_on(bus: Bus, server: Server) -> None:
    server.refusal = ZeroDivisionError("bug")
    with pytest.raises(Exception, match="ZeroDivisionError"):
        await bus.ask(PREFILL, Cancel("stop"), Envelope(), soon())
    assert await alive(bus, server)


async def test_a_reply_without_a_subject_is_counted(bus: Bus) -> None:
    before = metric.value("penstock_dropped_messages_total", reason="no_reply_subject")
    await bus.reply(Envelope("r"), Accepted())
    assert metric.value("penstock_dropped_messages_total", reason="no_reply_subject") == before + 1


async def test_an_answer_that_nobody_waits_for_is_no_drop_and_an_error_is(bus: Bus) -> None:
    dropped = metric.total("penstock_dropped_messages_total")
    await bus.answer(Envelope("r"), Accepted())
    assert metric.total("penstock_dropped_messages_total") == dropped
    before = metric.value("penstock_dropped_messages_total", reason="overloaded")
    await bus.answer(Envelope("r"), Overloaded("full"))
    assert metric.value("penstock_dropped_messages_total", reason="overloaded") == before + 1


async def test_an_answer_that_cannot_be_sent_is_counted_and_not_raised(bus: Bus) -> None:
    before = metric.value("penstock_dropped_messages_total", reason="reply_failed")
    await bus.answer(Envelope("r", reply="asker"), Failure("internal", "x" * (2 << 20)))
    assert metric.value("penstock_dropped_messages_total", reason="reply_failed") == before + 1


async def test_an_error_in_an_answer_names_the_hop_unless_it_has_one(bus: Bus, server: Server) -> None:
    server.refusal = Overloaded("full", hop="decode")
    with pytest.raises(Overloaded) as caught:
        await bus.ask(PREFILL, Cancel("stop"), Envelope(), soon())
    assert caught.value.hop == "decode"


async def test_messages_of_several_subjects_come_in_the_order_of_the_wire(nats_url: str, bus: Bus) -> None:
    both = await Bus.connect(nats_url, name="both")
    got: list[str] = []
    await both.serve(PREFILL, lambda delivery: got.append(delivery.envelope.request_id))
    await both.serve("penstock.prefill.another", lambda delivery: got.append(delivery.envelope.request_id))
    ids = [str(number) for number in range(20)]
    for number, request_id in enumerate(ids):
        address = PREFILL if number % 2 else "penstock.prefill.another"
        await bus.publish(address, Cancel("stop"), Envelope(request_id))
    await until(lambda: len(got) == len(ids))
    assert got == ids
    await both.close()


# ---- sizes --------------------------------------------------------------------------------------


async def test_a_message_over_max_payload_is_too_large_and_the_connection_lives(
    bus: Bus, server: Server
) -> None:
    with pytest.raises(TooLarge, match="max_payload"):
        await bus.publish(PREFILL, Snapshot(0, bytes(bus.max_payload)))
    with pytest.raises(TooLarge):
        await bus.ask(PREFILL, Snapshot(0, bytes(bus.max_payload)), Envelope(), soon())
    assert await alive(bus, server)


async def test_a_message_of_exactly_max_payload_passes(bus: Bus, server: Server) -> None:
    room = bus.max_payload - len(codec.encode(Snapshot(0, bytes(bus.max_payload)), Envelope()))
    largest = Snapshot(0, bytes(bus.max_payload + room))
    assert len(codec.encode(largest, Envelope())) == bus.max_payload
    await bus.publish(PREFILL, largest)
    await until(lambda: server.got)
    assert server.got[0].message == largest


# ---- garbage ------------------------------------------------------------------------------------

GOOD = codec.encode(Retrieve("query", 3, True), Envelope("r"))
GARBAGE = {
    "empty": (b"", "protocol"),
    "noise": (b"\xff\x00\x13\x37" * 10, "protocol"),
    "truncated": (GOOD[:-3], "protocol"),
    "json": (b'{"type": "Cancel"}', "protocol"),
    "wrong type of a field": (GOOD.replace(b"\x03\xc3", b"\xc2\xc3"), "protocol"),
    "unknown type": (
        msgpack.packb(["Explode", MEANING_VERSION, "", 0, 0, "", "", "", []]),
        "unknown_message",
    ),
    "other version": (msgpack.packb(["Cancel", 99, "", 0, 0, "", "", ["x"]]), "unknown_message"),
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_is_counted_and_answered_and_nobody_dies(
    name: str, nats_url: str, bus: Bus, server: Server
) -> None:
    data, code = GARBAGE[name]
    before = metric.value("penstock_protocol_errors_total", code=code)
    stranger = await nats.connect(nats_url)
    try:
        subject = subject_of(PREFILL, Retrieve.__name__, NOBODY)
        answer = await stranger.request(subject, data, timeout=60)
        await stranger.publish(subject, data)
        await stranger.flush()
    finally:
        await stranger.close()
    _, failure = codec.decode(answer.data)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.hop) == (code, "prefill")
    await until(lambda: metric.value("penstock_protocol_errors_total", code=code) == before + 2)
    assert await alive(bus, server)
    assert all(isinstance(delivery.message, SnapshotRequest) for delivery in server.got)


@pytest.mark.parametrize(
    "message", [b"PUB %b.\xff.nobody 0\r\n\r\n", b"HPUB %b.\xff.nobody 12 12\r\nNATS/1.0\r\n\r\n\r\n"]
)
async def test_a_subject_that_is_no_text_does_not_make_the_bus_deaf(
    nats_server: NatsServer, bus: Bus, server: Server, message: bytes
) -> None:
    reader, writer = await asyncio.open_connection(nats_server.host, nats_server.port)
    try:
        writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
        writer.write(message % PREFILL.encode() + b"PING\r\n")
        await reader.readuntil(b"PONG\r\n")
    finally:
        writer.close()
        await writer.wait_closed()
    assert await alive(bus, server)


async def test_a_garbage_answer_is_a_protocol_error_at_the_asker(nats_url: str, bus: Bus) -> None:
    stranger = await nats.connect(nats_url)
    try:

        async def answer(msg: Any) -> None:
            await msg.respond(b"garbage")

        await stranger.subscribe(everything_at(PREFILL), cb=answer)
        await stranger.flush()
        await stranger.flush()
        with pytest.raises(ProtocolError) as caught:
            await bus.ask(PREFILL, Cancel("stop"), Envelope(), soon())
        assert caught.value.hop == "prefill"
    finally:
        await stranger.close()


# ---- services API -------------------------------------------------------------------------------


async def test_an_announced_service_answers_the_stock_tools(nats_url: str, bus: Bus) -> None:
    await bus.announce("decode", {"instance": "decode-0"}, "0.1.0")
    stranger = await nats.connect(nats_url)
    try:
        pong = await stranger.request("$SRV.PING.penstock-decode", b"", timeout=60)
    finally:
        await stranger.close()
    assert b'"instance": "decode-0"' in pong.data or b'"instance":"decode-0"' in pong.data


# ---- the connection -------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_unavailable_within_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shared.bus.connection.FIRST_CONNECT_S", 0.2)
    with pytest.raises(Unavailable, match=r"no NATS server usable at nats://127\.0\.0\.1:1 "):
        await Bus.connect("nats://127.0.0.1:1", name="lonely")


async def test_a_wrong_password_is_unavailable_and_is_not_told_to_anybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shared.bus.connection.FIRST_CONNECT_S", 0.3)
    server = NatsServer(extra_config="authorization { user: u, password: right }")
    await server.start()
    try:
        with pytest.raises(Unavailable, match="Authorization Violation") as caught:
            await Bus.connect(f"nats://u:wrong@127.0.0.1:{server.port}", name="thief")
        assert "wrong" not in str(caught.value)
        bus = await Bus.connect(f"nats://u:right@127.0.0.1:{server.port}", name="owner")
        await bus.close()
    finally:
        await server.stop()


@pytest.mark.parametrize("url", ["", "not a url", "nats://", "nats://host:port"])
async def test_a_url_that_is_none_is_unavailable_and_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.bus.connection.FIRST_CONNECT_S", 0.2)
    with pytest.raises(Unavailable, match="no NATS server usable"):
        await Bus.connect(url, name="lost")


async def test_a_permission_error_is_counted_and_the_rest_works() -> None:
    config = (
        "authorization { users: [{ user: u, password: p, permissions: "
        '{ publish: { deny: "penstock.cancel.>" }, subscribe: ">" } }] }'
    )
    server = NatsServer(extra_config=config)
    await server.start()
    bus = await Bus.connect(f"nats://u:p@127.0.0.1:{server.port}", name="limited")
    try:
        before = metric.value("penstock_dropped_messages_total", reason="permission")
        await bus.publish("penstock.cancel", Cancel("stop"))
        await until(
            lambda: metric.value("penstock_dropped_messages_total", reason="permission") == before + 1
        )
        got: list[Delivery] = []
        await bus.serve(PREFILL, got.append)
        await bus.publish(PREFILL, Cancel("stop"))
        await until(lambda: got)
    finally:
        await bus.close()
        await server.stop()


async def test_closing_hands_over_what_was_published(nats_url: str, server: Server) -> None:
    bus = await Bus.connect(nats_url, name="leaver")
    for _ in range(100):
        await bus.publish(PREFILL, Cancel("stop"))
    await bus.close()
    await until(lambda: len(server.got) == 100)


async def test_a_closed_bus_refuses_and_may_be_closed_again(nats_url: str) -> None:
    bus = await Bus.connect(nats_url, name="leaver")
    await bus.close()
    await bus.close()
    with pytest.raises(Unavailable, match="closed"):
        await bus.publish(PREFILL, Cancel("stop"))
    with pytest.raises(Unavailable, match="closed"):
        await bus.ask(PREFILL, Cancel("stop"), Envelope(), soon())


async def test_a_server_that_throws_us_out_for_good_is_noticed(nats_url: str) -> None:
    connection = await Connection.open(nats_url, name="vandal")
    await connection.client._send_command(b"NONSENSE\r\n")
    await connection.client._flush_pending()
    async with asyncio.timeout(60):
        await connection.lost.wait()
    await connection.close()


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What every connection says of its room; there is none."""
    room = [False]
    monkeypatch.setattr(Connection, "has_room", property(lambda _: room[-1]))
    return room


async def test_answers_wait_for_room_in_their_order_and_hold_nobody_up(
    server: Server, bus: Bus, no_room: list[bool]
) -> None:
    answered: list[Message] = []
    asking = [asyncio.ensure_future(ask_cancel(bus, number, answered)) for number in range(3)]
    await until(lambda: len(server.got) == 3)
    for number in range(3):
        await server.bus.answer(server.got[number].envelope, Accepted(number))
    await bus.flush()
    assert answered == []
    no_room.append(True)
    await asyncio.gather(*asking)
    assert answered == [Accepted(number) for number in range(3)]


async def test_answers_beyond_what_may_wait_for_room_are_dropped_and_counted(
    server: Server, bus: Bus, no_room: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.bus.late_answers.LATE_ANSWERS_LIMIT", 2)
    before = metric.value("penstock_dropped_messages_total", reason="reply_failed")
    envelope = Envelope(reply="_INBOX.nobody")
    for _ in range(2):
        await server.bus.answer(envelope, Accepted())
    assert metric.value("penstock_dropped_messages_total", reason="reply_failed") == before
    await server.bus.answer(envelope, Accepted())
    assert metric.value("penstock_dropped_messages_total", reason="reply_failed") == before + 1
    await server.bus.close()
    assert metric.value("penstock_dropped_messages_total", reason="reply_failed") == before + 3


async def ask_cancel(bus: Bus, number: int, answered: list[Message]) -> None:
    cancel, envelope = Cancel(str(number)), Envelope(f"r{number}", 1)
    answered.append(await bus.ask(PREFILL, cancel, envelope, Deadline.after(20)))
