"""When blocks give their memory back: blank ones soon, cached ones later, held ones never."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import structlog.testing

from shared.engine.memory.block_pool import BlockEvent, BlockPool
from shared.engine.memory.idle_memory import BLANK_IDLE_S, MOST_BYTES, MOST_CALLS, IdleMemory
from shared.engine.memory.pool_pages import PoolPages
from shared.fairness.share import OPEN_SHARE
from tests.support.block_hashes import numbered_hash, numbered_hashes
from tests.support.clock import FakeClock

CACHED_IDLE_S = 600.0
NUM_BLOCKS = 8


class NotedPages(PoolPages):
    """Pages of memory that is not there: what would be given back is noted."""

    def __init__(self, num_rows: int = 1, cell_bytes: int = 64, *, refuses: bool = False) -> None:
        super().__init__(0, num_rows, NUM_BLOCKS, cell_bytes)
        self.given_back: list[int] = []
        self._refuses = refuses

    def give_back(self, blocks: Sequence[int], is_unused: bytearray) -> None:
        assert all(is_unused[block] for block in blocks)
        if self._refuses:
            raise OSError(22, "Invalid argument")
        self.given_back += blocks


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def blocks(clock: FakeClock) -> BlockPool:
    return BlockPool(NUM_BLOCKS, clock=clock)


def cache(blocks: BlockPool, numbers: Sequence[int], stay_s: float = 0.0) -> list[int]:
    """Compute a prompt of so many blocks, and let it go."""
    held = blocks.allocate(len(numbers))
    for block, number in zip(held, numbers, strict=True):
        blocks.commit(block, numbered_hash(number))
    blocks.free(held, stay_s)
    return held


def test_blank_blocks_give_their_memory_back_at_their_time_and_no_sooner(
    blocks: BlockPool, clock: FakeClock
) -> None:
    pages = NotedPages()
    idle = IdleMemory(blocks, pages, CACHED_IDLE_S, clock)
    assert idle.give_back() == math.inf  # nothing was used
    blocks.free(blocks.allocate(2))
    clock.advance(BLANK_IDLE_S - 1.0)
    assert (idle.give_back(), pages.given_back, blocks.num_resident) == (1.0, [], 2)
    clock.advance(1.0)
    assert (idle.give_back(), sorted(pages.given_back), blocks.num_resident) == (math.inf, [0, 1], 0)
    blocks.check([])


def test_cached_blocks_give_theirs_back_later_and_the_cache_says_that_they_are_gone(
    blocks: BlockPool, clock: FakeClock
) -> None:
    pages = NotedPages()
    idle = IdleMemory(blocks, pages, CACHED_IDLE_S, clock)
    cached = cache(blocks, [10, 11])
    blocks.drain_events()
    clock.advance(CACHED_IDLE_S - 1.0)
    assert (idle.give_back(), pages.given_back) == (1.0, [])
    assert blocks.match(numbered_hashes([10, 11])) == cached
    clock.advance(1.0)
    assert (idle.give_back(), pages.given_back) == (math.inf, [1, 0])
    assert blocks.match(numbered_hashes([10, 11])) == []
    assert blocks.drain_events() == [BlockEvent("removed", each) for each in numbered_hashes([11, 10])]
    blocks.check([])


def test_a_prefix_that_is_used_again_starts_anew(blocks: BlockPool, clock: FakeClock) -> None:
    pages = NotedPages()
    idle = IdleMemory(blocks, pages, CACHED_IDLE_S, clock)
    cache(blocks, [10, 11])
    clock.advance(CACHED_IDLE_S - 1.0)
    again = blocks.match(numbered_hashes([10]))
    blocks.retain(again)
    blocks.free(again)
    clock.advance(1.0)
    assert (idle.give_back(), pages.given_back) == (CACHED_IDLE_S - 1.0, [1])
    assert blocks.match(numbered_hashes([10])) == again


def test_a_block_that_somebody_holds_never_gives_its_memory_back(blocks: BlockPool, clock: FakeClock) -> None:
    pages = NotedPages()
    idle = IdleMemory(blocks, pages, CACHED_IDLE_S, clock)
    cached = cache(blocks, [10])
    blocks.retain(cached)
    held = blocks.allocate(1)
    clock.advance(10 * CACHED_IDLE_S)
    assert (idle.give_back(), pages.given_back, blocks.num_resident) == (math.inf, [], 2)
    blocks.check([cached, held])


def test_a_prefix_that_somebody_is_expected_to_come_back_for_stays_until_then(
    blocks: BlockPool, clock: FakeClock
) -> None:
    pages = NotedPages()
    idle = IdleMemory(blocks, pages, CACHED_IDLE_S, clock)
    cache(blocks, [10], stay_s=CACHED_IDLE_S + 5.0)
    clock.advance(CACHED_IDLE_S)
    assert (idle.give_back(), pages.given_back) == (5.0, [])
    clock.advance(5.0)
    assert (idle.give_back(), pages.given_back) == (math.inf, [0])


def test_blank_blocks_wait_no_longer_than_cached_ones(blocks: BlockPool, clock: FakeClock) -> None:
    pages = NotedPages()
    idle = IdleMemory(blocks, pages, 1.0, clock)
    blocks.free(blocks.allocate(1))
    clock.advance(1.0)
    assert (idle.give_back(), pages.given_back) == (math.inf, [0])


@pytest.mark.parametrize(
    ("num_rows", "cell_bytes", "most"),
    [(MOST_CALLS // 3, 64, 3), (2, MOST_BYTES // 4, 2), (2 * MOST_CALLS, 64, 1), (1, 2 * MOST_BYTES, 1)],
)
def test_no_more_is_given_back_at_a_time_than_takes_a_few_milliseconds(
    blocks: BlockPool, clock: FakeClock, num_rows: int, cell_bytes: int, most: int
) -> None:
    pages = NotedPages(num_rows, cell_bytes)
    idle = IdleMemory(blocks, pages, CACHED_IDLE_S, clock)
    blocks.free(blocks.allocate(NUM_BLOCKS, OPEN_SHARE))
    clock.advance(BLANK_IDLE_S)
    assert (idle.give_back(), len(pages.given_back)) == (0.0, most)
    while idle.give_back() == 0.0:
        assert len(pages.given_back) % most == 0
    assert len(pages.given_back) == NUM_BLOCKS


def test_a_system_that_refuses_is_asked_once_and_told_of(blocks: BlockPool, clock: FakeClock) -> None:
    idle = IdleMemory(blocks, NotedPages(refuses=True), CACHED_IDLE_S, clock)
    blocks.free(blocks.allocate(NUM_BLOCKS))
    clock.advance(BLANK_IDLE_S)
    with structlog.testing.capture_logs() as logs:
        assert (idle.give_back(), idle.refused) == (math.inf, True)
    assert logs == [{"event": "kv_memory_not_given_back", "log_level": "warning", "why": "Invalid argument"}]
