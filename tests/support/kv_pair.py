"""The two sides of KV transfers, on connections of their own to one real server."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shared.bus import Bus, Delivery
from shared.bus.bulk import BulkConnection
from shared.bus.bulk_stream import BulkSink
from shared.bus.credentials import Credentials
from shared.bus.subjects import inbox, kv
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import PenstockError
from shared.kv.memory.plain_pool import PlainLayout, PlainPool
from shared.kv.memory.shared_pool import SharedPool
from shared.kv.receiving.receiver import KvReceiver
from shared.kv.sending.sender import KvSender
from shared.kv.transfer_key import TransferKey
from tests.support.wait import until

INCARNATION = 77
PATIENCE_S = 240.0
"""Longer than a transfer takes on a machine that is busy."""
SUBJECT = kv("decode-0", INCARNATION)
BETWEEN = ("prefill-0", "decode-0")
CredentialsOf = Callable[[str], Credentials | None]
"""The credentials of an instance, on a bus that wants some."""


SMALL = PlainLayout(3, 4096)
LARGE = PlainLayout(4, 64 << 10)


@dataclass
class Side:
    """What one side's callbacks reported."""

    released: list[TransferKey] = field(default_factory=list)
    failed: list[tuple[TransferKey, PenstockError]] = field(default_factory=list)
    complete: list[tuple[TransferKey, tuple[int, ...], str]] = field(default_factory=list)


class FaultySink:
    """In front of a receiver's sink: loses or changes the bodies that the two predicates pick.

    `seen` counts the chunks that began, `landed` those whose body the receiver has taken in.
    """

    def __init__(self, inner: BulkSink, drop: Callable[[int], bool], corrupt: Callable[[int], bool]) -> None:
        self.header_bytes = inner.header_bytes
        self._inner = inner
        self._drop = drop
        self._corrupt = corrupt
        self._views: list[memoryview] = []
        self.seen = 0
        self.landed = 0

    def open(self, header: bytes, body_bytes: int) -> Sequence[memoryview] | None:
        number, self.seen = self.seen, self.seen + 1
        if self._drop(number):
            return None
        views = self._inner.open(header, body_bytes)
        self._views = list(views) if views is not None and self._corrupt(number) else []
        return views

    def done(self) -> None:
        if self._views:
            self._views[0][0] ^= 1
        self._inner.done()
        self.landed += 1

    def lost(self) -> None:
        self._inner.lost()


def never(_number: int) -> bool:
    return False


def nobody(_instance: str) -> None:
    """Anybody may come in."""


class Pair:
    """A prefill side and a decode side, each with its own two connections to one server; `between` names
    others in their place."""

    def __init__(
        self,
        layout: PlainLayout,
        blocks: int,
        share: bool,
        transport: str,
        clock: Clock,
        between: tuple[str, str] = BETWEEN,
    ) -> None:
        self.layout = layout
        self.between = between
        self.roles = [name.rpartition("-")[0] for name in between]
        nbytes = layout.groups.block_layers * layout.layer_block_bytes * blocks
        self.shared = SharedPool.create(nbytes) if share else None
        self.source = PlainPool(layout, blocks, self.shared.memory if self.shared else None)
        self.source.memory[:] = random.Random(1).randbytes(nbytes)
        self.target = PlainPool(layout, blocks)
        self.prefill, self.decode = Side(), Side()
        self.transport = transport
        self.clock = clock
        self.to_receiver: list[Delivery] = []
        self.to_sender: list[Delivery] = []
        self.hold_receiver = False
        self.mute_sender = False
        self.tasks: list[asyncio.Task[None]] = []

    async def connect(self, url: str, credentials: CredentialsOf = nobody) -> None:
        known = [(name, credentials(name)) for name in self.between]
        self.buses = [await Bus.connect(url, name=name, credentials=its) for name, its in known]
        self.bulks = [await BulkConnection.connect(url, name=name, credentials=its) for name, its in known]
        self.sender = KvSender(
            self.buses[0],
            self.bulks[0],
            self.source,
            self.shared,
            on_released=self.prefill.released.append,
            on_failed=lambda key, error: self.prefill.failed.append((key, error)),
            clock=self.clock,
        )
        self.receiver = KvReceiver(
            self.buses[1],
            self.bulks[1],
            self.between[1],
            INCARNATION,
            self.target,
            self.transport,
            on_complete=lambda key, ids, finish, _us: self.decode.complete.append((key, ids, finish)),
            on_failed=lambda key, error: self.decode.failed.append((key, error)),
            on_released=self.decode.released.append,
            clock=self.clock,
        )
        await self.receiver.start()
        await self.buses[0].serve(inbox(self.roles[0], self.between[0]), self._at_sender)
        await self.buses[1].serve(inbox(self.roles[1], self.between[1]), self._at_receiver)
        self.tasks = [
            asyncio.create_task(self.sender.run_transfers()),
            asyncio.create_task(self.receiver.run_transfers()),
        ]

    def _at_sender(self, delivery: Delivery) -> None:
        self.to_sender.append(delivery)
        if not self.mute_sender:
            assert self.sender.handle_message(delivery)

    def _at_receiver(self, delivery: Delivery) -> None:
        self.to_receiver.append(delivery)
        if not self.hold_receiver:
            assert self.receiver.handle_message(delivery)

    async def close(self) -> None:
        for task in self.tasks:
            assert not task.done(), task
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.receiver.close()
        for bulk in self.bulks:
            await bulk.close()
        for bus in self.buses:
            await bus.close()
        if self.shared is not None:
            self.shared.close()

    # ---- a request ---------------------------------------------------------------------------

    def deadline(self, seconds: float = PATIENCE_S) -> Deadline:
        return Deadline.after(seconds, self.clock)

    def offer_transfer(
        self, request: str, blocks: Sequence[int], epoch: int = 1, seconds: float = PATIENCE_S
    ) -> TransferKey:
        return self.offer_tables(request, [blocks], [0], epoch, seconds)

    def offer_tables(
        self,
        request: str,
        tables: Sequence[Sequence[int]],
        firsts: Sequence[int],
        epoch: int = 1,
        seconds: float = PATIENCE_S,
    ) -> TransferKey:
        deadline = self.deadline(seconds)
        self.sender.offer_transfer(
            request,
            epoch,
            "gateway-0",
            self.between[1],
            tables,
            firsts,
            deadline,
            receiver_role=self.roles[1],
        )
        return (request, epoch)

    def expect_transfer(
        self, request: str, blocks: Sequence[int], first: int = 0, epoch: int = 1, seconds: float = PATIENCE_S
    ) -> TransferKey:
        return self.expect_tables(request, [blocks], [first], epoch, seconds)

    def expect_tables(
        self,
        request: str,
        tables: Sequence[Sequence[int]],
        firsts: Sequence[int],
        epoch: int = 1,
        seconds: float = PATIENCE_S,
    ) -> TransferKey:
        deadline = self.deadline(seconds)
        self.receiver.expect_transfer(
            request,
            epoch,
            "gateway-0",
            self.between[0],
            5,
            tables,
            firsts,
            deadline,
            sender_role=self.roles[0],
        )
        return (request, epoch)

    def compute(self, key: TransferKey, blocks: int, layers: int | None = None) -> None:
        for layer in range(self.layout.num_layers if layers is None else layers):
            self.sender.layer_ready(key, layer, 0, blocks)

    async def transferred(self, count: int = 1) -> None:
        await until(lambda: len(self.decode.complete) >= count and len(self.prefill.released) >= count)

    def fault(
        self, drop: Callable[[int], bool] = never, corrupt: Callable[[int], bool] = never
    ) -> FaultySink:
        """From now on chunks of these numbers (from 0, as they arrive) are lost or changed."""
        sinks = self.bulks[1]._client.bulk.sinks
        faulty = FaultySink(sinks[SUBJECT.encode()], drop, corrupt)
        sinks[SUBJECT.encode()] = faulty
        return faulty

    def pause_chunks(self) -> None:
        """The receiver's bulk connection stops reading; the server keeps what comes."""
        self._bulk_transport().pause_reading()

    def resume_chunks(self) -> None:
        self._bulk_transport().resume_reading()

    def _bulk_transport(self) -> asyncio.Transport:
        stream = self.bulks[1]._client.bulk.stream
        assert stream is not None
        assert stream.transport is not None
        return stream.transport

    def heard_by_sender(self, kind: type) -> int:
        return sum(isinstance(delivery.message, kind) for delivery in self.to_sender)

    def heard_by_receiver(self, kind: type) -> int:
        return sum(isinstance(delivery.message, kind) for delivery in self.to_receiver)

    async def freed(self) -> None:
        """Nothing is held on either side."""
        await until(self.nothing_held)

    def nothing_held(self) -> bool:
        return not self.sender.held() and not self.receiver.held()


class MakePair(Protocol):
    def __call__(
        self,
        layout: PlainLayout = SMALL,
        blocks: int = 64,
        share: bool = False,
        transport: str = "auto",
        clock: Clock = SYSTEM_CLOCK,
        between: tuple[str, str] = BETWEEN,
    ) -> Awaitable[Pair]: ...


@contextlib.asynccontextmanager
async def pairs(url: str, credentials: CredentialsOf = nobody) -> AsyncIterator[MakePair]:
    """Makes pairs on the server at `url`; all are closed at the end."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(
            layout: PlainLayout = SMALL,
            blocks: int = 64,
            share: bool = False,
            transport: str = "auto",
            clock: Clock = SYSTEM_CLOCK,
            between: tuple[str, str] = BETWEEN,
        ) -> Pair:
            pair = Pair(layout, blocks, share, transport, clock, between)
            await pair.connect(url, credentials)
            stack.push_async_callback(pair.close)
            return pair

        yield make


def assert_same(pair: Pair, source: Sequence[int], target: Sequence[int]) -> None:
    for a, b in zip(source, target, strict=True):
        assert pair.source.cells(a) == pair.target.cells(b)
