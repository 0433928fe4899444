"""Cells, credit, and the small memories of transfers."""

from __future__ import annotations

import random

import pytest

from shared.engine.loading.layer_groups import LayerGroups
from shared.errors import ChecksumMismatch, InvalidRequest, ProtocolError
from shared.kv.cells import CellMap, Run
from shared.kv.chunk import HEADER_BYTES, ChunkHeader, parse_header
from shared.kv.expiring import Expiring
from shared.kv.memory.pool_memory import PoolMemory

TWO_LAYERS = LayerGroups.of([None, None])


def test_runs_are_maximal_and_stay_inside_their_layer() -> None:
    cells = CellMap([5, 5], 10)
    cells.set(Run(0, 8, 10), 1)
    cells.set(Run(1, 5, 7), 1)
    assert list(cells.all_runs(1)) == [Run(0, 8, 10), Run(1, 5, 7)]
    assert list(cells.runs(0, Run(0, 5, 10))) == [Run(0, 5, 8)]
    assert cells.count(1) == 4


def test_indices_and_runs_of_are_inverse() -> None:
    cells = CellMap([2] * 3, 6)
    cells.set(Run(1, 3, 6), 1)
    indices = cells.indices(1, 100)
    assert indices == (5, 6, 7)
    assert list(cells.runs_of(indices)) == [Run(1, block, block + 1) for block in (3, 4, 5)]
    assert cells.indices(0, 2) == (0, 1)


def test_layers_that_begin_later_have_fewer_cells() -> None:
    cells = CellMap([0, 3, 4], 4)
    assert cells.size == 5
    assert cells.clip(Run(1, 0, 4)) == Run(1, 3, 4)
    assert not cells.holds(Run(1, 2, 4))
    cells.set(Run(1, 3, 4), 1)
    assert list(cells.all_runs(1)) == [Run(1, 3, 4)]
    assert cells.indices(1, 9) == (4,)
    assert list(cells.runs_of((0, 4))) == [Run(0, 0, 1), Run(1, 3, 4)]


def test_indices_of_a_peer_outside_of_the_map_are_left_out() -> None:
    assert list(CellMap([0, 0], 2).runs_of((-1, 4, 1 << 70))) == []


@pytest.mark.parametrize("run", [Run(-1, 0, 1), Run(2, 0, 1), Run(0, 0, 0), Run(0, 3, 5), Run(0, 2, 1)])
def test_a_run_outside_of_the_map_is_not_held(run: Run) -> None:
    assert not CellMap([0, 0], 4).holds(run)


def test_only_neighbouring_blocks_lie_together() -> None:
    pool = PoolMemory(memoryview(bytearray(range(48))), TWO_LAYERS, 6, 4)
    for blocks in ((2, 4), (3, 2), (2, 4, 4), (2, 2), (0, 2, 1, 3)):
        assert pool.neighbours(1, blocks) is None, blocks
    for first, end in ((0, 6), (2, 3), (2, 5)):
        together = pool.neighbours(1, range(first, end))
        assert together is not None
        assert bytes(together) == bytes(range(24 + 4 * first, 24 + 4 * end))


def test_a_read_of_neighbours_is_the_pool_itself_and_of_others_a_copy() -> None:
    pool = PoolMemory(memoryview(bytearray(range(48))), TWO_LAYERS, 6, 4)
    together, apart = pool.read(1, (2, 3)), pool.read(1, (5, 0))
    assert bytes(apart) == bytes(range(44, 48)) + bytes(range(24, 28))
    pool.write(1, (0, 2), memoryview(bytes(8)))
    assert bytes(together) == bytes(4) + bytes(range(36, 40))
    assert bytes(apart) == bytes(range(44, 48)) + bytes(range(24, 28))


@pytest.mark.parametrize("blocks", [(-1,), (6,), (0, 7)])
def test_blocks_outside_of_the_pool_are_invalid(blocks: tuple[int, ...]) -> None:
    pool = PoolMemory(memoryview(bytearray(48)), TWO_LAYERS, 6, 4)
    with pytest.raises(InvalidRequest):
        pool.check_blocks(blocks)


def test_copying_blocks_between_random_tables_moves_exactly_those() -> None:
    rng = random.Random(5)
    source = PoolMemory(memoryview(bytearray(rng.randbytes(2 * 40 * 8))).toreadonly(), TWO_LAYERS, 40, 8)
    for _ in range(50):
        target = PoolMemory(memoryview(bytearray(2 * 40 * 8)), TWO_LAYERS, 40, 8)
        count = rng.randint(1, 20)
        a, b = rng.sample(range(40), count), rng.sample(range(40), count)
        copied = target.copy_from(source, 1, a, b)
        assert copied == source.checksum(1, a) == target.checksum(1, b)
        assert bytes(target.read(1, b)) == b"".join(bytes(source.read(1, [block])) for block in a)
        others = [block for block in range(40) if block not in b]
        assert not bytes(target.read(1, others)).strip(b"\0")
        assert not bytes(target.read(0, range(40))).strip(b"\0")


def test_a_header_survives_the_wire_and_covers_itself() -> None:
    body = memoryview(b"abcdefgh")
    header = ChunkHeader(transfer=7, epoch=2, offset=1 << 40, layer=3, block=9, blocks=1, body_bytes=8)
    packed = header.pack(body)
    parsed, claimed = parse_header(packed)
    assert parsed == header
    assert len(packed) == HEADER_BYTES
    parsed.verify(body, claimed)
    for at in range(4, HEADER_BYTES):
        changed = bytearray(packed)
        changed[at] ^= 1
        parsed, claimed = parse_header(bytes(changed))
        with pytest.raises(ChecksumMismatch):
            parsed.verify(body, claimed)


@pytest.mark.parametrize("data", [b"", b"\0" * HEADER_BYTES, b"PKV1", b"PKV1" + b"\0" * HEADER_BYTES])
def test_what_is_not_a_header_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_header(data)


def test_an_expiring_memory_is_bounded_and_forgets() -> None:
    memory: Expiring[str, int] = Expiring(2, 10.0)
    for now, key in enumerate("abc"):
        memory.put(key, now, float(now))
    assert memory.get("a") is None
    assert memory.pop("b") == 1
    memory.forget(11.9)
    assert memory.get("c") == 2
    memory.forget(12.0)
    assert len(memory) == 0
