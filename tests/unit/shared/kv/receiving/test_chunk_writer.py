"""Where a chunk lands in the pool: only what is missing of it, once it is verified or in its own place."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from shared.deadline import Deadline
from shared.errors import ProtocolError
from shared.kv.cells import Run
from shared.kv.chunk import ChunkHeader
from shared.kv.memory.plain_pool import PlainPool
from shared.kv.memory.pool_memory import PoolMemory
from shared.kv.receiving.chunk_writer import ChunkWriter
from shared.kv.receiving.incoming import IncomingTransfer
from shared.kv.request_blocks import RequestBlocks
from shared.kv.transports import NATS
from tests.support.clock import FakeClock
from tests.support.kv_pair import SMALL

CELL = SMALL.layer_block_bytes
SCATTERED = (5, 1, 7, 2)
TOGETHER = (3, 4, 5, 6)
TRANSFER = 9


@dataclass
class Landing:
    """A receiver of one transfer of four blocks, which notes what its chunk writer says."""

    blocks: tuple[int, ...]
    pool: PlainPool = field(default_factory=lambda: PlainPool(SMALL, 8))
    corrupt: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.incoming = IncomingTransfer(
            "gateway-0.1",
            1,
            TRANSFER,
            origin="gateway-0",
            prefill="prefill-0",
            incarnation=1,
            blocks=RequestBlocks.of([self.blocks], [0], SMALL.groups),
            deadline=Deadline.after(60, FakeClock()),
            cell_bytes=CELL,
            now_s=0.0,
        )
        self.incoming.grant(NATS, 1 << 30, 0.0)
        self.writer = ChunkWriter(PoolMemory.of(self.pool), {TRANSFER: self.incoming}.get, self)

    def cells_verified(self, incoming: IncomingTransfer, run: Run) -> None:
        incoming.verified(run, 0.0)

    def cells_corrupt(self, incoming: IncomingTransfer, run: Run) -> None:
        assert incoming is self.incoming
        self.corrupt.append(run)

    def chunk_unneeded(self, incoming: IncomingTransfer) -> None: ...

    def chunk_refused(self, incoming: IncomingTransfer, error: ProtocolError) -> None:
        raise AssertionError(incoming) from error

    def comes(self, first: int, body: bytes, claimed: bytes | None = None) -> None:
        """Layer 0 of request blocks from `first` on; the header is that of `claimed`."""
        blocks = len(body) // CELL
        header = ChunkHeader(TRANSFER, 1, 0, 0, first, blocks, len(body)).pack(memoryview(claimed or body))
        views = self.writer.open(header, len(body))
        assert views is not None
        at = 0
        for view in views:
            view[:] = body[at : at + view.nbytes]
            at += view.nbytes
        assert at == len(body)
        self.writer.done()

    def layer(self) -> bytes:
        return b"".join(bytes(self.pool.memory[block * CELL : (block + 1) * CELL]) for block in self.blocks)


def cells(seed: int, count: int) -> bytes:
    return random.Random(seed).randbytes(count * CELL)


@pytest.mark.parametrize("blocks", [SCATTERED, TOGETHER])
def test_a_chunk_lands_in_its_blocks_and_nowhere_else(blocks: tuple[int, ...]) -> None:
    landing = Landing(blocks)
    body = cells(1, 4)
    landing.comes(0, body)
    assert landing.layer() == body
    others = [block for block in range(8) if block not in blocks]
    assert not b"".join(landing.pool.cells(block) for block in others).strip(b"\0")


@pytest.mark.parametrize("blocks", [SCATTERED, TOGETHER])
def test_a_changed_repetition_cannot_harm_what_is_verified(blocks: tuple[int, ...]) -> None:
    landing = Landing(blocks)
    body = cells(1, 4)
    landing.comes(1, body[CELL : 3 * CELL])
    landing.comes(0, cells(2, 4), claimed=body)
    assert landing.corrupt == [Run(0, 0, 4)]
    assert landing.layer()[CELL : 3 * CELL] == body[CELL : 3 * CELL]
    landing.comes(0, body)
    assert landing.layer() == body


def test_a_changed_chunk_of_scattered_blocks_never_reaches_the_pool() -> None:
    landing = Landing(SCATTERED)
    landing.comes(0, cells(2, 4), claimed=cells(1, 4))
    assert landing.corrupt == [Run(0, 0, 4)]
    assert not bytes(landing.pool.memory).strip(b"\0")


def test_a_verified_cell_is_not_written_by_a_sound_chunk_that_says_something_else() -> None:
    landing = Landing(TOGETHER)
    landing.comes(2, cells(1, 1))
    landing.comes(0, cells(2, 4))
    assert landing.layer() == cells(2, 2) + cells(1, 1) + cells(2, 4)[3 * CELL :]


def test_neighbouring_blocks_are_filled_in_place() -> None:
    landing = Landing(TOGETHER)
    views = landing.writer.open(
        ChunkHeader(TRANSFER, 1, 0, 0, 0, 4, 4 * CELL).pack(memoryview(b"")), 4 * CELL
    )
    assert views is not None
    views[0][:] = b"\x5a" * (4 * CELL)
    assert landing.layer() == b"\x5a" * (4 * CELL)
