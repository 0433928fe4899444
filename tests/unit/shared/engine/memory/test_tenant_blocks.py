"""Which blocks are evicted: of the tenant that has most for its weight, the least recently used ones."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.memory.block_pool import BlockPool
from shared.fairness.share import OPEN_SHARE, TenantShare
from tests.support.block_hashes import numbered_hash, numbered_hashes
from tests.support.clock import FakeClock

HEAVY, LIGHT = TenantShare("heavy"), TenantShare("light")


def cache(pool: BlockPool, share: TenantShare, numbers: Sequence[int], stay_s: float = 0.0) -> None:
    """Compute a prompt of so many blocks for a tenant, and let it go."""
    blocks = pool.allocate(len(numbers), share)
    for block, number in zip(blocks, numbers, strict=True):
        pool.commit(block, numbered_hash(number))
    pool.free(blocks, stay_s)


def take(pool: BlockPool, numbers: Sequence[int], stay_s: float = 0.0) -> None:
    """Go on from a prompt that is cached, and let it go again."""
    blocks = pool.match(numbered_hashes(numbers))
    pool.retain(blocks, HEAVY)
    pool.free(blocks, stay_s)


def has(pool: BlockPool, numbers: Sequence[int]) -> int:
    """Return how many blocks of a prompt are cached, from its first on."""
    return len(pool.match(numbered_hashes(numbers)))


def test_the_flood_of_one_tenant_evicts_no_prefix_of_another() -> None:
    pool = BlockPool(8)
    cache(pool, LIGHT, [1, 2, 3, 4])
    for number in range(100, 200, 2):
        cache(pool, HEAVY, [number, number + 1])
    assert has(pool, [1, 2, 3, 4]) == 4
    assert has(pool, [198, 199]) == 2
    pool.check([])


def test_a_tenant_above_its_part_gives_up_what_it_used_least_lately() -> None:
    pool = BlockPool(8)
    cache(pool, HEAVY, [10, 11, 12, 13, 14])
    cache(pool, HEAVY, [20, 21, 22])
    cache(pool, LIGHT, [1, 2, 3])
    assert (has(pool, [1, 2, 3]), has(pool, [20, 21, 22]), has(pool, [10, 11, 12, 13, 14])) == (3, 3, 2)
    assert (pool.num_of("heavy"), pool.num_of("light")) == (5, 3)


def test_a_tenant_that_is_alone_has_all_of_the_cache() -> None:
    pool = BlockPool(4)
    for number in range(0, 40, 2):
        cache(pool, HEAVY, [number, number + 1])
    assert pool.num_of("heavy") == 4
    assert (has(pool, [36, 37]), has(pool, [38, 39])) == (2, 2)


def test_who_has_nothing_that_rests_takes_of_whoever_has() -> None:
    """A request that runs is not refused room for the sake of another tenant's prefix."""
    pool = BlockPool(4)
    cache(pool, LIGHT, [1, 2])
    held = pool.allocate(2, HEAVY)
    more = pool.allocate(2, HEAVY)
    assert has(pool, [1]) == 0
    assert pool.num_of("light") == 0
    pool.check([held, more])


def test_blocks_that_are_held_count_in_a_tenants_part() -> None:
    pool = BlockPool(8)
    cache(pool, LIGHT, [1, 2, 3])
    held = pool.allocate(3, HEAVY)
    cache(pool, HEAVY, [20, 21])
    held += pool.allocate(2, HEAVY)
    assert has(pool, [1, 2, 3]) == 3
    pool.check([held])


def test_a_tenant_of_twice_the_weight_keeps_twice_as_much() -> None:
    pool = BlockPool(9)
    weighty = TenantShare("weighty", weight=2)
    for number in range(10, 100):
        cache(pool, weighty, [number])
        cache(pool, LIGHT, [1000 + number])
    assert (pool.num_of("weighty"), pool.num_of("light")) == (6, 3)


def test_a_warmed_prefix_becomes_that_of_whoever_uses_it_first() -> None:
    pool = BlockPool(4)
    cache(pool, OPEN_SHARE, [1, 2])
    assert pool.num_of(OPEN_SHARE.tenant) == 2
    blocks = pool.match(numbered_hashes([1, 2]))
    pool.retain(blocks, LIGHT)
    assert (pool.num_of(OPEN_SHARE.tenant), pool.num_of("light")) == (0, 2)
    pool.free(blocks)
    pool.retain(blocks, HEAVY)
    assert pool.num_of("light") == 2
    pool.check([blocks])


def test_the_order_of_tenants_does_not_grow_with_what_they_do() -> None:
    pool = BlockPool(4)
    for number in range(1000):
        cache(pool, (HEAVY, LIGHT)[number % 2], [number])
    assert len(pool._cached._order) < 20


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=60))
def test_nobody_at_or_below_an_equal_part_loses_a_block_to_another(steps: list[tuple[int, int]]) -> None:
    """Where no request needs more than that itself."""
    pool, fresh = BlockPool(12), iter(range(10**6))
    tenants = [TenantShare(f"tenant-{number}") for number in range(4)]
    for who, count in steps:
        before = [pool.num_of(share.tenant) for share in tenants]
        cache(pool, tenants[who], [next(fresh) for _ in range(count)])
        for share, had in zip(tenants, before, strict=True):
            if share is not tenants[who] and had <= 3:
                assert pool.num_of(share.tenant) == had
        pool.check([])


# ---- blocks that stay for somebody ----


def test_what_is_expected_to_be_gone_on_from_stays_while_others_come_and_go() -> None:
    pool = BlockPool(8, clock=FakeClock())
    cache(pool, HEAVY, [1, 2, 3], stay_s=10.0)
    for number in range(100, 200, 2):
        cache(pool, HEAVY, [number, number + 1])
    assert (has(pool, [1, 2, 3]), has(pool, [198, 199])) == (3, 2)
    pool.check([])


def test_when_the_time_has_passed_it_is_as_any() -> None:
    clock = FakeClock()
    pool = BlockPool(8, clock=clock)
    cache(pool, HEAVY, [1, 2, 3], stay_s=10.0)
    clock.advance(10.0)
    cache(pool, HEAVY, range(100, 105))
    assert has(pool, [1, 2, 3]) == 3
    cache(pool, HEAVY, [110])
    assert (has(pool, [1, 2, 3]), has(pool, range(100, 105))) == (2, 5)  # its end goes first


def test_it_stays_for_the_last_of_those_who_expect_it_and_is_given_up_where_nobody_does() -> None:
    pool = BlockPool(8, clock=FakeClock())
    cache(pool, HEAVY, [1, 2, 3], stay_s=10.0)
    take(pool, [1, 2])  # somebody who says nothing of it
    cache(pool, HEAVY, range(100, 105))
    cache(pool, HEAVY, range(110, 115))
    assert has(pool, [1, 2, 3]) == 3
    take(pool, [1, 2, 3], stay_s=-1.0)
    for number in (200, 210):
        cache(pool, HEAVY, range(number, number + 5))
    assert has(pool, [1, 2, 3]) == 0
    pool.check([])


def test_no_more_than_a_share_of_the_pool_stays() -> None:
    pool = BlockPool(8, clock=FakeClock())
    cache(pool, HEAVY, range(8), stay_s=10.0)
    cache(pool, HEAVY, range(100, 108))
    assert pool.num_cached == 8
    assert has(pool, range(100, 108)) == 8


def test_what_runs_is_not_refused_room_for_what_stays() -> None:
    pool = BlockPool(4, clock=FakeClock())
    cache(pool, HEAVY, [1, 2], stay_s=10.0)
    blocks = pool.allocate(4, LIGHT)
    assert has(pool, [1, 2]) == 0
    pool.check([blocks])
