"""Pages of a pool are given back where no block in use lies on them, and the system has them then."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.memory.kv_pool import KvLayout, KvPool
from shared.engine.memory.pool_pages import PoolPages, shared_page_bytes
from shared.kv.memory.shared_pool import SharedPool
from tests.support.memory import resident_bytes

PAGE = 64
ROWS = 3


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 3),
    st.integers(1, 200),
    st.lists(st.sampled_from(["used", "unused", "given back"]), min_size=1, max_size=12),
)
def test_a_page_is_given_back_once_no_block_on_it_is_in_use(
    offset: int, cell_bytes: int, blocks: list[str]
) -> None:
    address = 10 * PAGE + 16 * offset
    pages = PoolPages(address, ROWS, len(blocks), cell_bytes, PAGE)
    given_back = [block for block, state in enumerate(blocks) if state == "given back"]
    is_unused = bytearray(state != "used" for state in blocks)
    got = {
        page
        for start, end in pages.spans(given_back, is_unused)
        for page in range(start // PAGE, end // PAGE)
        if start % PAGE == end % PAGE == 0
    }
    states: dict[int, set[str]] = {}
    for place in range(ROWS * len(blocks) * cell_bytes):
        states.setdefault((address + place) // PAGE, set()).add(blocks[place // cell_bytes % len(blocks)])
    ends = {address // PAGE, (address + ROWS * len(blocks) * cell_bytes) // PAGE}
    for end in ends:  # where other memory may lie too
        whole = address <= end * PAGE and (end + 1) * PAGE <= address + ROWS * len(blocks) * cell_bytes
        if not whole:
            states.pop(end, None)
    free = {page for page, seen in states.items() if "used" not in seen and "given back" in seen}
    assert got == free


def test_the_calls_for_a_pool_that_is_all_given_back_are_few() -> None:
    pages = PoolPages(0, ROWS, 1000, PAGE, PAGE)
    assert len(list(pages.spans(range(1000), bytearray(b"\1" * 1000)))) == ROWS


LAYOUT = KvLayout(num_layers=2, num_kv_heads=4, head_dim=64, dtype="float32")
NUM_BLOCKS = 40


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_given_back_takes_no_memory_and_the_rest_is_as_it_was(*, shared: bool) -> None:
    memory = SharedPool.create(NUM_BLOCKS * LAYOUT.block_bytes) if shared else None
    pool = KvPool(LAYOUT, NUM_BLOCKS, None if memory is None else memory.memory)
    pages = pool.pages()
    assert pages is not None
    pool.data.fill_(7)
    before = resident_bytes(pool.data.data_ptr(), pool.nbytes)
    given_back = [*range(3, 20), 39]
    pages.give_back(given_back, bytearray(block in given_back for block in range(NUM_BLOCKS)))
    if shared_page_bytes() == mmap.PAGESIZE:  # else pages are larger than what is given back here
        left = resident_bytes(pool.data.data_ptr(), pool.nbytes)
        assert before - left == len(given_back) * LAYOUT.block_bytes
        assert not pool.data[:, given_back].any()
    kept = [block for block in range(NUM_BLOCKS) if block not in given_back]
    assert np.all(pool.data[:, kept].numpy() == 7)
    if memory is not None:
        memory.close()


def test_memory_that_is_not_shared_is_refused_with_the_reason_of_the_system() -> None:
    with mmap.mmap(-1, 2 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        array = np.frombuffer(memory, np.uint8)
        pages = PoolPages(array.ctypes.data, 1, 2, mmap.PAGESIZE)
        with pytest.raises(OSError, match="Invalid argument"):
            pages.give_back([0], bytearray(b"\1\0"))
        del array


@pytest.mark.parametrize(
    ("enabled", "size", "page_bytes"),
    [
        ("always within_size [advise] never deny force", "2097152", 1 << 21),
        ("always within_size advise [never] deny force", "2097152", mmap.PAGESIZE),
        ("always within_size advise never [deny] force", "2097152", mmap.PAGESIZE),
        (None, None, mmap.PAGESIZE),
    ],
)
def test_pages_are_as_large_as_the_system_says(
    tmp_path: Path, enabled: str | None, size: str | None, page_bytes: int
) -> None:
    for name, text in (("shmem_enabled", enabled), ("hpage_pmd_size", size)):
        if text is not None:
            (tmp_path / name).write_text(f"{text}\n")
    assert shared_page_bytes(tmp_path) == page_bytes
