"""Two services of one process: what they say to each other is as on the bus, and no server hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import nats
import pytest
from nats.aio.msg import Msg

from shared.bus import Bus, Delivery
from shared.bus.near.near_inboxes import NearInboxes
from shared.bus.subjects import CANCEL_ALL, inbox
from shared.deadline import Deadline
from shared.errors import NoAnswer, NoListener, Overloaded, TooLarge
from shared.messages import Accepted, Cancel, CancelAck, Envelope, Lost, Open, Text, Tokenize, Tokens
from tests.support import metric
from tests.support.wait import until

GATEWAY, DETOKENIZER = "gateway-0", "detokenizer-gateway0"
THERE, BACK = inbox("detokenizer", DETOKENIZER), inbox("gateway", GATEWAY)
SOON_S = 60.0
"""Ends an ask that nothing else has ended, on a busy machine too."""


@dataclass
class Receiver:
    """Takes what is served to it, as an actor's mailbox of `places` would."""

    bus: Bus
    places: int = 1 << 20
    got: list[Delivery] = field(default_factory=list)

    def receive(self, delivery: Delivery) -> None:
        if len(self.got) >= self.places:
            raise Overloaded(f"the mailbox is full ({self.places} messages)", retry_after_ms=100)
        self.got.append(delivery)


@dataclass
class Pair:
    """A gateway and a detokenizer of one process."""

    gateway: Receiver
    detokenizer: Receiver

    async def ask(self, message: Cancel | Open, seconds: float = SOON_S) -> object:
        deadline = Deadline.after(seconds)
        return await self.gateway.bus.ask(THERE, message, Envelope("gateway-0.1", 1), deadline)


async def connected(url: str, instance: str) -> Bus:
    return await Bus.connect(url, name=instance, sender=instance)


def text_of(text: str) -> Text:
    return Text(("r",), (1,), (0,), ((),), (text,), ("",), ((),), ((),))


@pytest.fixture
async def heard(nats_url: str) -> AsyncIterator[list[str]]:
    """Return what a server hears that is for either, or an answer."""
    subjects: list[str] = []
    client = await nats.connect(nats_url)

    async def hear(msg: Msg) -> None:
        subjects.append(msg.subject)

    for subject in ("penstock.gateway.>", "penstock.detokenizer.>", "_INBOX.>"):
        await client.subscribe(subject, cb=hear)
    await client.flush()
    yield subjects
    await client.close()


async def flushed(heard: list[str], *buses: Bus) -> list[str]:
    """Return it once the server has all that was said, and we all that it heard."""
    for bus in buses:
        await bus.flush()
    mark = inbox("gateway", "gateway-9")
    await buses[0].publish(mark, Cancel("mark"))
    await until(lambda: any(subject.startswith(mark) for subject in heard))
    return [subject for subject in heard if not subject.startswith(mark)]


@pytest.fixture
async def pair(nats_url: str) -> AsyncIterator[Pair]:
    near = NearInboxes()
    buses = [await connected(nats_url, GATEWAY), await connected(nats_url, DETOKENIZER)]
    pair = Pair(*map(Receiver, buses))
    for receiver, role, address in (
        (pair.gateway, "gateway", BACK),
        (pair.detokenizer, "detokenizer", THERE),
    ):
        receiver.bus.join(near, role)
        await receiver.bus.serve(address, receiver.receive)
    yield pair
    for bus in buses:
        await bus.close()


async def test_messages_both_ways_come_in_order_and_whole_and_no_server_hears_them(
    pair: Pair, heard: list[str]
) -> None:
    for epoch in range(1000):
        await pair.gateway.bus.publish(
            THERE, Cancel("stop"), Envelope("r", epoch, 7, GATEWAY, "t", tenant="x")
        )
        await pair.detokenizer.bus.publish(BACK, Lost("gap", "m", "detokenizer"), Envelope("r", epoch))
    await until(lambda: len(pair.detokenizer.got) == len(pair.gateway.got) == 1000)
    assert [delivery.envelope.epoch for delivery in pair.detokenizer.got] == list(range(1000))
    assert [delivery.envelope.epoch for delivery in pair.gateway.got] == list(range(1000))
    first = pair.detokenizer.got[0]
    assert first == Delivery(Envelope("r", 0, 7, GATEWAY, "t", tenant="x"), Cancel("stop"), GATEWAY)
    assert await flushed(heard, pair.gateway.bus, pair.detokenizer.bus) == []


async def test_nobody_is_called_while_he_calls(pair: Pair) -> None:
    await pair.gateway.bus.publish(THERE, Cancel("stop"))
    assert pair.detokenizer.got == []
    await asyncio.sleep(0)
    assert len(pair.detokenizer.got) == 1


async def test_what_is_for_others_goes_over_the_bus_and_others_are_heard(pair: Pair, nats_url: str) -> None:
    other = await connected(nats_url, "gateway-1")
    elsewhere = Receiver(other)
    await other.serve(inbox("gateway", "gateway-1"), elsewhere.receive)
    await pair.detokenizer.bus.publish(inbox("gateway", "gateway-1"), Lost("gap", "m", "detokenizer"))
    await other.publish(THERE, Cancel("stop"))
    await until(lambda: elsewhere.got and pair.detokenizer.got)
    assert pair.detokenizer.got[0].sender == "gateway-1"
    await other.close()


async def test_a_broadcast_is_everybody_s(pair: Pair, nats_url: str) -> None:
    other = Receiver(await connected(nats_url, "decode-0"))
    for receiver in (other, pair.detokenizer):
        await receiver.bus.serve(CANCEL_ALL, receiver.receive)
    await pair.gateway.bus.publish(CANCEL_ALL, Cancel("stop"))
    await until(lambda: other.got and pair.detokenizer.got)
    await other.bus.close()


# ---- asking -----------------------------------------------------------------------------------------------


async def test_an_ask_is_answered_once_and_no_server_hears_it(pair: Pair, heard: list[str]) -> None:
    ask = asyncio.create_task(pair.ask(Cancel("stop")))
    await until(lambda: pair.detokenizer.got)
    envelope = pair.detokenizer.got[0].envelope
    await pair.detokenizer.bus.reply(envelope, CancelAck(True, "detokenizing"))
    await pair.detokenizer.bus.answer(envelope, CancelAck(False, ""))
    assert await ask == CancelAck(True, "detokenizing")
    assert await flushed(heard, pair.gateway.bus, pair.detokenizer.bus) == []


async def test_an_ask_that_is_sent_again_is_done_once(pair: Pair) -> None:
    before = metric.value("penstock_dropped_messages_total", reason="asked_again")
    ask = asyncio.create_task(pair.ask(Cancel("stop")))
    await until(lambda: pair.detokenizer.got)
    pair.gateway.bus.ask_again(THERE)
    await until(lambda: metric.value("penstock_dropped_messages_total", reason="asked_again") == before + 1)
    assert len(pair.detokenizer.got) == 1
    await pair.detokenizer.bus.reply(pair.detokenizer.got[0].envelope, Accepted())
    assert await ask == Accepted()


async def test_a_full_mailbox_refuses_who_asks_and_counts_who_does_not(pair: Pair) -> None:
    pair.detokenizer.places = 0
    with pytest.raises(Overloaded, match="mailbox is full") as refused:
        await pair.ask(Cancel("stop"))
    assert (refused.value.hop, refused.value.retry_after_ms) == ("detokenizer", 100)
    before = metric.value("penstock_dropped_messages_total", reason="overloaded")
    await pair.gateway.bus.publish(THERE, Cancel("stop"))
    await until(lambda: metric.value("penstock_dropped_messages_total", reason="overloaded") == before + 1)


async def test_an_ask_that_nobody_answers_ends_at_its_deadline_and_a_late_answer_is_nobody_s(
    pair: Pair,
) -> None:
    with pytest.raises(NoAnswer):
        await pair.ask(Cancel("stop"), seconds=0.05)
    await until(lambda: pair.detokenizer.got)
    await pair.detokenizer.bus.reply(pair.detokenizer.got[0].envelope, Accepted())
    pair.detokenizer.got.clear()
    ask = asyncio.create_task(pair.ask(Cancel("again")))
    await until(lambda: pair.detokenizer.got)
    await pair.detokenizer.bus.reply(pair.detokenizer.got[0].envelope, CancelAck(False, ""))
    assert await ask == CancelAck(False, "")


async def test_an_ask_that_is_given_up_leaves_nothing(pair: Pair) -> None:
    ask = asyncio.create_task(pair.ask(Cancel("stop")))
    await until(lambda: pair.detokenizer.got)
    ask.cancel()
    await asyncio.wait([ask])
    assert ask.cancelled()
    await pair.detokenizer.bus.reply(pair.detokenizer.got[0].envelope, Accepted())
    await asyncio.sleep(0)  # the turn in which it comes: there is nobody
    assert len(pair.gateway.bus._connection.asks) == 0


# ---- what may not be --------------------------------------------------------------------------------------


async def test_who_may_not_say_something_is_not_heard_and_it_is_counted(pair: Pair) -> None:
    before = metric.value("penstock_dropped_messages_total", reason="permission")
    await pair.gateway.bus.publish(THERE, Tokens((), (), (), (), (), (), ()))
    await pair.detokenizer.bus.publish(BACK, Cancel("stop"))
    deadline = Deadline.after(0.05)
    with pytest.raises(NoAnswer):
        await pair.gateway.bus.ask(THERE, Tokenize(text="x"), Envelope(), deadline)
    assert metric.value("penstock_dropped_messages_total", reason="permission") == before + 3
    await pair.detokenizer.bus.publish(BACK, Lost("gap", "m", "detokenizer"))
    await pair.gateway.bus.publish(THERE, Cancel("stop"))
    await until(lambda: pair.gateway.got and pair.detokenizer.got)
    assert [type(one.message) for one in (*pair.gateway.got, *pair.detokenizer.got)] == [Lost, Cancel]


async def test_no_more_bytes_than_a_server_takes(pair: Pair) -> None:
    most = pair.detokenizer.bus.max_payload
    with pytest.raises(TooLarge, match="max_payload"):
        await pair.detokenizer.bus.publish(BACK, text_of("x" * most))
    await pair.detokenizer.bus.publish(BACK, text_of("x" * (most - 200)))
    await until(lambda: pair.gateway.got)


# ---- the end ----------------------------------------------------------------------------------------------


async def test_who_asks_one_that_leaves_before_it_hears_is_told(pair: Pair) -> None:
    with pytest.raises(NoAnswer):  # from now on its answers are listened for
        await pair.ask(Cancel("stop"), seconds=0.05)
    pair.detokenizer.got.clear()
    before = metric.value("penstock_dropped_messages_total", reason="near_gone")
    ask = asyncio.create_task(pair.ask(Cancel("stop")))
    await asyncio.sleep(0)  # the turn in which it is sent
    await pair.gateway.bus.publish(THERE, Cancel("stop"))
    await pair.detokenizer.bus.close()
    with pytest.raises(NoListener):
        await ask
    assert metric.value("penstock_dropped_messages_total", reason="near_gone") == before + 1
    assert pair.detokenizer.got == []


async def test_one_that_has_left_is_asked_over_the_bus(pair: Pair) -> None:
    await pair.detokenizer.bus.close()
    assert not pair.gateway.bus.is_near(THERE)
    with pytest.raises(NoListener):
        await pair.ask(Cancel("stop"))


async def test_a_connection_that_is_away_keeps_nobody_near_from_speaking(pair: Pair) -> None:
    assert pair.gateway.bus.is_near(THERE)
    await pair.gateway.bus._connection.close()
    await pair.gateway.bus.publish(THERE, Cancel("stop"))
    await until(lambda: pair.detokenizer.got)
