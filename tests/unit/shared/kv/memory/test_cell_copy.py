"""Copying cells, compiled and with numpy: the same bytes and the same checksum, python-xxhash's."""

from __future__ import annotations

import random

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.native.library import library
from shared.errors import InvalidRequest
from shared.kv.memory import cell_copy
from shared.kv.memory.cell_copy import Cells, copy_cells, hash_cells

NUM_CELLS = 24
WAYS = [
    pytest.param(True, id="compiled", marks=pytest.mark.skipif(library() is None, reason="not built here")),
    pytest.param(False, id="numpy"),
]
SIZES = st.sampled_from((8, 64, 100, 128, 192, 1024, 4096, 8192, 10_240))


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(cell_copy, "library", lambda: None)


def random_cells(seed: int, cell_bytes: int, shift: int = 0) -> Cells:
    """`shift` bytes from where the allocator would begin them."""
    data = bytearray(random.Random(seed).randbytes(NUM_CELLS * cell_bytes + shift))
    return np.frombuffer(data, np.uint8)[shift:].reshape(NUM_CELLS, cell_bytes)


@pytest.mark.usefixtures("way")
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), SIZES, st.integers(1, NUM_CELLS), st.integers(0, 65), st.booleans())
def test_what_is_copied_is_what_is_hashed_and_nothing_else_is_written(
    seed: int, cell_bytes: int, count: int, shift: int, streamed: bool
) -> None:
    rng = random.Random(seed)
    source, target = random_cells(seed, cell_bytes), random_cells(seed + 1, cell_bytes, shift)
    before = target.copy()
    here, there = rng.sample(range(NUM_CELLS), count), rng.sample(range(NUM_CELLS), count)
    copied = copy_cells(source, here, target, there, streamed=streamed)
    assert copied == xxhash.xxh3_64_intdigest(source[here].tobytes())
    assert np.array_equal(target[there], source[here])
    others = [cell for cell in range(NUM_CELLS) if cell not in there]
    assert np.array_equal(target[others], before[others])
    assert hash_cells(target, there) == copied


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("indices", [(-1,), (NUM_CELLS,), (0, 1 << 40), (3, -5)])
def test_a_cell_that_is_not_there_is_refused_before_anything_moves(indices: tuple[int, ...]) -> None:
    cells, target = random_cells(1, 4096), random_cells(2, 4096)
    before = target.copy()
    with pytest.raises(InvalidRequest, match="are not among 24"):
        hash_cells(cells, indices)
    with pytest.raises(InvalidRequest, match="are not among 24"):
        copy_cells(cells, indices, target, range(len(indices)))
    with pytest.raises(InvalidRequest, match="are not among 24"):
        copy_cells(cells, range(len(indices)), target, indices)
    assert np.array_equal(target, before)


@pytest.mark.usefixtures("way")
def test_tables_of_different_lengths_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="2 cells of KV cannot be copied to 1 places"):
        copy_cells(random_cells(1, 4096), (0, 1), random_cells(2, 4096), (0,))


@pytest.mark.skipif(library() is None, reason="not built here")
@pytest.mark.parametrize(("cell_bytes", "count"), [(64, 3), (64, 4), (120, 3), (192, 1), (192, 2)])
def test_short_and_odd_cells_take_the_way_that_knows_them(cell_bytes: int, count: int) -> None:
    cells = random_cells(3, cell_bytes)
    expected = xxhash.xxh3_64_intdigest(cells[:count].tobytes())
    assert hash_cells(cells, range(count)) == expected
    assert copy_cells(cells, range(count), random_cells(4, cell_bytes), range(count)) == expected
