"""A KV receiver with two transfers that are lied about and two honest ones, and what must hold of all four.

Chunks come as the bulk connection has them from its socket, in pieces of any size; control messages as the
inbox has them. Time is played.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import msgpack

from shared.bus import Delivery, codec
from shared.bus.bulk import BulkConnection
from shared.bus.bulk_stream import BulkSink, BulkStream
from shared.bus.bus import NO_ENVELOPE
from shared.deadline import Deadline
from shared.errors import PenstockError
from shared.kv import limits
from shared.kv.chunk import ChunkHeader
from shared.kv.memory.plain_pool import PlainLayout, PlainPool
from shared.kv.memory.pool_memory import PoolMemory
from shared.kv.memory.shared_pool import NOT_SHARED, SharedPool
from shared.kv.receiving.receiver import KvReceiver
from shared.kv.transfer_key import TransferKey
from shared.messages import Envelope, KvDone, KvReady, Message
from tests.fuzz.target import Fault, check_refusal
from tests.fuzz.targets.bus_codec import with_version
from tests.support.clock import FakeClock
from tests.support.kv_pair import INCARNATION, SUBJECT

LAYOUT = PlainLayout(4, 64, (None, 64, None, 64))
CELL = LAYOUT.layer_block_bytes
LAYERS = LAYOUT.num_layers
POOL_BLOCKS = 48
REQUEST_BLOCKS = 5
FIRST_IN_WINDOW = 2
"""The first block of the layers with a window that is part of a transfer."""
TOKENS = (7,)
EPOCH = 3
FAR_S = 1e6
SHARED_PEERS = ("prefill-1", "prefill-3")
MAX_TURNS = 10_000


@dataclass(frozen=True, slots=True)
class Expected:
    """A transfer of every input. Its number is its place in `EXPECTED`, from 1 on."""

    request_id: str
    prefill: str
    tables: tuple[tuple[int, ...], tuple[int, ...]]
    honest: bool

    @property
    def key(self) -> TransferKey:
        return self.request_id, EPOCH


EXPECTED = (
    Expected("r-0", "prefill-0", ((3, 1, 4, 5, 9), (2, 6, 8, 7, 0)), honest=False),
    Expected("r-1", "prefill-1", ((10, 11, 12, 13, 14), (15, 16, 17, 18, 19)), honest=False),
    Expected("r-2", "prefill-2", ((20, 22, 21, 23, 24), (25, 26, 27, 28, 29)), honest=True),
    Expected("r-3", "prefill-3", ((30, 31, 32, 33, 34), (39, 38, 37, 36, 35)), honest=True),
)
SOURCE = random.Random(4).randbytes(LAYOUT.groups.block_layers * POOL_BLOCKS * CELL)
"""The pool of all prefill workers, in which a request has the same blocks as at the receiver."""
_SOURCE_POOL = PlainPool(LAYOUT, POOL_BLOCKS, memoryview(SOURCE))
SOURCE_MEMORY = PoolMemory.of(_SOURCE_POOL)


def first_of(layer: int) -> int:
    """Return the first block of that layer that is part of a transfer."""
    return FIRST_IN_WINDOW if LAYOUT.groups.group_of[layer] else 0


def blocks_of(expected: Expected, layer: int, first: int, end: int) -> tuple[int, ...]:
    return expected.tables[LAYOUT.groups.group_of[layer]][first:end]


def body_of(number: int, layer: int, first: int, end: int) -> bytes:
    """The bytes of those cells, as their prefill worker has computed them."""
    return bytes(SOURCE_MEMORY.read(layer, blocks_of(EXPECTED[number - 1], layer, first, end)))


def chunk_of(number: int, layer: int, first: int, end: int, offset: int) -> bytes:
    """A chunk as its sender would send it."""
    body = body_of(number, layer, first, end)
    header = ChunkHeader(number, EPOCH, offset, layer, first, end - first, len(body))
    return header.pack(memoryview(body)) + body


@dataclass
class PlayedBus:
    """What the receiver says is noted; a probe is answered with the memory that its peer shares."""

    shared: SharedPool
    said: list[Message] = field(default_factory=list)

    async def publish(self, _subject: str, message: Message, _envelope: Envelope = NO_ENVELOPE) -> None:
        self.said.append(message)

    async def answer(self, _envelope: Envelope, answer: Message) -> None:
        self.said.append(answer)

    async def ask(self, subject: str, _message: Message, _envelope: Envelope, _deadline: Deadline) -> Message:
        return self.shared.segment if subject.endswith(SHARED_PEERS) else NOT_SHARED

    def envelope(
        self,
        request_id: str = "",
        epoch: int = 0,
        deadline: Deadline | None = None,  # noqa: ARG002 - a bus's signature
        origin: str = "",
    ) -> Envelope:
        return Envelope(request_id, epoch, 0, origin)


class PlayedBulk:
    """The receiving half of a bulk connection, whose socket is the input."""

    def __init__(self) -> None:
        self._sinks: dict[bytes, BulkSink] = {}
        self.stream = BulkStream(self._sinks)

    async def serve(self, subject: str, sink: BulkSink) -> None:
        self._sinks[subject.encode()] = sink

    def discard_body(self, sink: BulkSink) -> None:
        self.stream.discard_body(sink)

    def come(self, data: bytes, piece_bytes: int) -> None:
        """The socket has these bytes, and gives up to so many at a time."""
        at = 0
        while at < len(data):
            room = self.stream.get_buffer(-1)
            count = min(len(room), piece_bytes, len(data) - at)
            room[:count] = data[at : at + count]
            self.stream.buffer_updated(count)
            at += count

    def lose(self) -> None:
        """The connection is lost, and there is a new one."""
        self.stream.connection_lost(None)
        self.stream = BulkStream(self._sinks)


class PlayedTransfers:
    """One receiver, from its first transfer to its last."""

    def __init__(self, shared: SharedPool) -> None:
        self.clock = FakeClock()
        self.bus, self.bulk = PlayedBus(shared), PlayedBulk()
        self.pool = PlainPool(LAYOUT, POOL_BLOCKS)
        self.complete: list[tuple[TransferKey, tuple[int, ...]]] = []
        self.failed: list[TransferKey] = []
        self.released: list[TransferKey] = []
        self.expected: Counter[TransferKey] = Counter()
        self._ended_as: dict[TransferKey, tuple[tuple[int, ...], bytes]] = {}
        self.receiver = KvReceiver(
            self.bus,
            cast(BulkConnection, self.bulk),
            "decode-0",
            INCARNATION,
            self.pool,
            on_complete=self._on_complete,
            on_failed=lambda key, _error: self.failed.append(key),
            on_released=self._on_released,
            clock=self.clock,
        )

    async def begin(self) -> None:
        await self.receiver.start()
        self._running = asyncio.create_task(self.receiver.run_transfers())
        for expected in EXPECTED:
            self.expect(expected, EPOCH)
        await self.settle()

    def expect(self, expected: Expected, epoch: int) -> None:
        """The decode worker makes room, for one more route of the request."""
        blocks = set(expected.tables[0]) | set(expected.tables[1])
        for ended_key, (ended, _) in list(self._ended_as.items()):
            if blocks & set(ended):
                del self._ended_as[ended_key]
        key = (expected.request_id, epoch)
        self.expected[key] += 1
        try:
            self.receiver.expect_transfer(
                expected.request_id,
                epoch,
                "gateway-0",
                expected.prefill,
                5,
                expected.tables,
                (0, FIRST_IN_WINDOW),
                Deadline.after(FAR_S, self.clock),
            )
        except PenstockError as error:
            self.expected[key] -= 1
            check_refusal(error)

    def chunk(self, payload: bytes, piece_bytes: int, lost_at: int | None = None) -> None:
        """A message of the subject of chunks comes; with `lost_at` its connection ends there."""
        frame = f"MSG {SUBJECT} 1 {len(payload)}\r\n".encode() + payload + b"\r\n"
        self.bulk.come(frame[:lost_at], piece_bytes)
        if lost_at is not None:
            self.bulk.lose()

    def message(self, sender: str, packed: bytes) -> None:
        try:
            envelope, message = codec.decode(with_version(packed))
            self.receiver.handle_message(Delivery(envelope, message, sender))
        except PenstockError as error:
            check_refusal(error)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.receiver._timer.look_at_all()

    async def settle(self) -> None:
        """Let the tasks of the receiver do what there is to do. Raises what has ended one of them."""
        for _ in range(MAX_TURNS):
            await asyncio.sleep(0)
            if self._running.done():
                self._running.result()
                raise Fault("the transfers ended")
            if not any(each.copies or each.probing for each in self.receiver._transfers.values()):
                break
        else:
            raise Fault(f"copies were not done after {MAX_TURNS} turns")
        for key, (blocks, was) in self._ended_as.items():
            if self._bytes_of(blocks) != was:
                raise Fault(f"the blocks of {key} changed after its transfer had ended")

    async def end(self) -> None:
        """The honest transfers come as they should, all others are given up; then nothing may be held."""
        try:
            for number, expected in enumerate(EXPECTED, 1):
                if expected.honest:
                    await self._come_honestly(number, expected)
            for key in [each.key for each in self.receiver._transfers.values()]:
                self.receiver.abort_transfer(key, "cancelled")
            self.pass_time(limits.LEASE_S + 1)
            await self.settle()
            self._check_end()
        finally:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self.receiver.close()

    async def _come_honestly(self, number: int, expected: Expected) -> None:
        offset = 0
        for layer in range(LAYERS):
            first = first_of(layer)
            if expected.prefill in SHARED_PEERS:
                blocks = blocks_of(expected, layer, first, REQUEST_BLOCKS)
                checksum = SOURCE_MEMORY.checksum(layer, blocks)
                self._say(expected, KvReady(number, layer, layer + 1, first, blocks, (checksum,)))
                continue
            payload = chunk_of(number, layer, first, REQUEST_BLOCKS, offset)
            self.chunk(payload, len(payload))
            offset += (REQUEST_BLOCKS - first) * CELL
        self._say(expected, KvDone(number, TOKENS, "", 0))
        await self.settle()
        if (expected.key, TOKENS) not in self.complete:
            raise Fault(f"the honest transfer of {expected.request_id} did not come: {self.failed}")
        for layer in range(LAYERS):
            blocks = blocks_of(expected, layer, first_of(layer), REQUEST_BLOCKS)
            if PoolMemory.of(self.pool).read(layer, blocks) != SOURCE_MEMORY.read(layer, blocks):
                raise Fault(f"layer {layer} of {expected.request_id} is not what its sender sent")

    def _say(self, expected: Expected, message: Message) -> None:
        self.receiver.handle_message(
            Delivery(Envelope(expected.request_id, EPOCH), message, expected.prefill)
        )

    def _check_end(self) -> None:
        if held := self.receiver.held():
            raise Fault(f"still held: {held}")
        if self.receiver._grants.credit.free_bytes != limits.RECEIVER_WINDOW_BYTES:
            raise Fault("credit was not given back")
        ended = Counter((*(key for key, _ in self.complete), *self.released))
        if ended != +self.expected:
            raise Fault(f"{self.expected} ended as {self.complete} and {self.released}")
        if not Counter(self.failed) <= self.expected:
            raise Fault(f"a transfer failed twice: {self.failed}")
        ours = {block for expected in EXPECTED for table in expected.tables for block in table}
        others = set(range(POOL_BLOCKS)) - ours
        if any(self.pool.cells(block).strip(b"\0") for block in others):
            raise Fault("a block that is no transfer's was written")

    def _on_complete(
        self, key: TransferKey, token_ids: tuple[int, ...], _finish: str, exposed_us: int
    ) -> None:
        if not 0 <= exposed_us <= 2 * limits.MAX_WAITED_S * 1e6:
            raise Fault(f"the request is said to have waited {exposed_us} us for its KV")
        self.complete.append((key, token_ids))
        self._note_end(key)

    def _on_released(self, key: TransferKey) -> None:
        self.released.append(key)
        self._note_end(key)

    def _note_end(self, key: TransferKey) -> None:
        (expected,) = [each for each in EXPECTED if each.request_id == key[0]]
        blocks = (*expected.tables[0], *expected.tables[1])
        self._ended_as[key] = (blocks, self._bytes_of(blocks))

    def _bytes_of(self, blocks: Sequence[int]) -> bytes:
        return b"".join(self.pool.cells(block) for block in blocks)


def packed(request_id: str, epoch: int, message: Message) -> bytes:
    """A message as a line of an input keeps it."""
    return codec.encode(message, Envelope(request_id, epoch))


def kept_message(data: bytes, no_version: int) -> bytes:
    """The same under the version that stands for that of the day."""
    whole = msgpack.unpackb(data, use_list=True)
    whole[1] = no_version
    return bytes(msgpack.packb(whole))
