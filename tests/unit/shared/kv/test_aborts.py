"""When blocks come back from a transfer that was aborted, at either side; the test is the other one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest

from shared.bus import Delivery
from shared.bus.bulk import BulkConnection
from shared.bus.bulk_stream import BulkSink
from shared.deadline import Deadline
from shared.kv import limits
from shared.kv.chunk import ChunkHeader
from shared.kv.memory.plain_pool import PlainPool
from shared.kv.receiving.receiver import KvReceiver
from shared.kv.sending.sender import KvSender
from shared.kv.transfer_key import TransferKey
from shared.messages import (
    Envelope,
    KvAbort,
    KvAbortAck,
    KvCredit,
    KvDone,
    KvGrant,
    KvMissing,
    KvReceived,
    Message,
)
from tests.support.clock import FakeClock
from tests.support.kv_pair import SMALL, SUBJECT
from tests.support.metric import value
from tests.support.noted_bus import NotedBus
from tests.support.wait import until

KEY = ("gateway-0.1", 1)
BLOCKS = (3, 4, 5)
CELL_BYTES = SMALL.layer_block_bytes


class PlayedBulk:
    """Takes every chunk; the test hands the chunks of others to `sink`."""

    max_payload = 1 << 20
    sink: BulkSink

    async def serve(self, _subject: str, sink: BulkSink) -> None:
        self.sink = sink

    async def send(self, _subject: str, _header: bytes, _body: Sequence[memoryview]) -> None: ...


def unexpected(*_: object) -> None:
    raise AssertionError(_)


class Sending:
    """A sender whose transfer has been granted."""

    def __init__(self) -> None:
        self.bus = NotedBus()
        self.clock = FakeClock()
        self.released: list[TransferKey] = []
        self.sender = KvSender(
            self.bus,
            cast(BulkConnection, PlayedBulk()),
            PlainPool(SMALL, 8),
            None,
            on_released=self.released.append,
            on_failed=unexpected,
            clock=self.clock,
        )
        deadline = Deadline.after(60.0, self.clock)
        self.sender.offer_transfer(*KEY, "gateway-0", "decode-0", [BLOCKS], [0], deadline)
        self.hear(KvGrant(1, SMALL.fingerprint(), (0,), len(BLOCKS), "nats", SUBJECT, CELL_BYTES))

    def hear(self, message: Message, sender: str = "decode-0") -> None:
        assert self.sender.handle_message(Delivery(Envelope(*KEY), message, sender))

    def aborts(self) -> int:
        return len([m for m in self.bus.to("penstock.decode.decode-0") if isinstance(m, KvAbort)])


class Receiving:
    """A receiver that has granted a transfer."""

    def __init__(self) -> None:
        self.bus = NotedBus()
        self.clock = FakeClock()
        self.bulk = PlayedBulk()
        self.pool = PlainPool(SMALL, 8)
        self.released: list[TransferKey] = []
        self.receiver = KvReceiver(
            self.bus,
            cast(BulkConnection, self.bulk),
            "decode-0",
            1,
            self.pool,
            "nats",
            on_complete=unexpected,
            on_failed=unexpected,
            on_released=self.released.append,
            clock=self.clock,
        )
        deadline = Deadline.after(60.0, self.clock)
        self.receiver.expect_transfer(*KEY, "gateway-0", "prefill-0", 1, [BLOCKS], [0], deadline)

    def hear(self, message: Message, sender: str = "prefill-0") -> None:
        assert self.receiver.handle_message(Delivery(Envelope(*KEY), message, sender))

    def aborts(self) -> int:
        return len([m for m in self.bus.to("penstock.prefill.prefill-0") if isinstance(m, KvAbort)])

    def chunk_comes(self, block: int) -> bool:
        """A chunk of one cell, as the bulk connection hands it in; whether it was taken."""
        body = memoryview(b"\xff" * CELL_BYTES)
        header = ChunkHeader(1, KEY[1], 0, 0, block, 1, CELL_BYTES).pack(body)
        views = self.bulk.sink.open(header, CELL_BYTES)
        if views is None:
            return False
        for view in views:
            view[:] = body
        self.bulk.sink.done()
        return True


@asynccontextmanager
async def running(side: KvSender | KvReceiver) -> AsyncIterator[None]:
    task = asyncio.create_task(side.run_transfers())
    yield
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_aborted_sender_keeps_its_blocks_until_the_receiver_has_acknowledged() -> None:
    side = Sending()
    side.sender.abort_transfer(KEY, "cancelled")
    assert side.released == []
    assert [held.phase for held in side.sender.held()] == ["aborting"]
    side.hear(KvAbortAck(1))
    assert side.released == [KEY]


async def test_an_aborted_sender_with_a_mute_receiver_keeps_its_blocks_for_a_lease() -> None:
    side = Sending()
    async with running(side.sender):
        side.sender.abort_transfer(KEY, "cancelled")
        side.clock.advance(limits.LEASE_S - 0.1)
        await until(lambda: side.aborts() == 2)  # the timer has looked at it
        assert side.released == []
        side.clock.advance(0.2)
        await until(lambda: side.released == [KEY])


async def test_an_aborted_receiver_keeps_its_blocks_until_the_sender_has_acknowledged() -> None:
    side = Receiving()
    side.receiver.abort_transfer(KEY, "cancelled")
    assert side.released == []
    assert [held.phase for held in side.receiver.held()] == ["aborting"]
    side.hear(KvAbortAck(1))
    assert side.released == [KEY]


async def test_an_aborted_receiver_with_a_mute_sender_keeps_its_blocks_for_a_lease() -> None:
    side = Receiving()
    async with running(side.receiver):
        side.receiver.abort_transfer(KEY, "cancelled")
        side.clock.advance(limits.LEASE_S - 0.1)
        await until(lambda: side.aborts() == 2)
        assert side.released == []
        side.clock.advance(0.2)
        await until(lambda: side.released == [KEY])


async def test_a_chunk_of_a_transfer_that_is_being_aborted_leaves_the_pool_as_it_is() -> None:
    side = Receiving()
    await side.receiver.start()
    assert side.chunk_comes(0)
    side.receiver.abort_transfer(KEY, "cancelled")
    assert [held.phase for held in side.receiver.held()] == ["aborting"]
    before = side.pool.memory.tobytes()
    assert not side.chunk_comes(1)
    assert side.pool.memory.tobytes() == before


# ---- who may say so ----


@pytest.mark.parametrize(
    "message",
    [KvAbort(1, "forged"), KvReceived(1), KvMissing(1, (0,)), KvCredit(1, 10 * CELL_BYTES, 20 * CELL_BYTES)],
    ids=lambda message: type(message).__name__,
)
async def test_only_its_decode_worker_is_heard_about_an_outgoing_transfer(message: Message) -> None:
    side = Sending()
    before = value("penstock_dropped_messages_total", reason="foreign_kv")
    side.hear(message, "decode-1")
    assert (side.released, [held.phase for held in side.sender.held()]) == ([], ["sending"])
    assert value("penstock_dropped_messages_total", reason="foreign_kv") == before + 1


async def test_only_its_prefill_worker_is_heard_about_an_incoming_transfer() -> None:
    side = Receiving()
    before = value("penstock_dropped_messages_total", reason="foreign_kv")
    for message in (KvAbort(1, "forged"), KvDone(1, (7,), "stop", 0)):
        side.hear(message, "prefill-1")
    side.receiver.abort_transfer(KEY, "cancelled")
    side.hear(KvAbortAck(1), "prefill-1")
    assert side.released == []
    assert value("penstock_dropped_messages_total", reason="foreign_kv") == before + 3
    side.hear(KvAbortAck(1))
    assert side.released == [KEY]


async def test_what_a_stranger_says_before_the_transfer_is_offered_does_not_touch_it() -> None:
    side = Sending()
    other = ("gateway-0.2", 1)
    foreign = Envelope(*other)
    assert side.sender.handle_message(Delivery(foreign, KvAbort(1, "forged"), "decode-1"))
    assert side.sender.handle_message(
        Delivery(
            foreign,
            KvGrant(5, SMALL.fingerprint(), (0,), 1, "nats", SUBJECT, CELL_BYTES),
            "decode-0",
        )
    )
    side.sender.offer_transfer(*other, "gateway-0", "decode-0", [(6,)], [0], Deadline.after(60.0, side.clock))
    assert [held.phase for held in side.sender.held()] == ["sending", "sending"]
