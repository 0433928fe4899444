from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.blocks.layer_groups import KvGroups
from shared.engine.memory.block_pool import BlockEvent, BlockPool
from shared.errors import InternalError, Overloaded
from tests.support.block_hashes import numbered_hash, numbered_hashes
from tests.support.clock import FakeClock


def test_allocated_blocks_are_held_until_freed() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    assert (pool.num_held, pool.num_free) == (3, 1)
    pool.check([blocks])
    pool.free(blocks)
    assert (pool.num_held, pool.num_free) == (0, 4)
    pool.check([])


def test_asking_for_more_than_is_free_takes_nothing() -> None:
    pool = BlockPool(4)
    held = pool.allocate(2)
    with pytest.raises(Overloaded, match="3 KV blocks"):
        pool.allocate(3)
    pool.check([held])


def test_committed_blocks_are_found_by_hash_after_they_are_freed() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.commit(blocks[0], numbered_hash(10))
    pool.commit(blocks[1], numbered_hash(11))
    pool.free(blocks)
    assert pool.match(numbered_hashes([10, 11, 12])) == blocks
    assert pool.match(numbered_hashes([11])) == blocks[1:]
    assert pool.match(numbered_hashes([9, 10])) == []


def test_a_cached_block_can_be_held_twice() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.commit(block, numbered_hash(10))
    pool.retain([block])
    pool.free([block])
    assert pool.num_held == 1
    pool.check([[block]])


def test_the_tail_of_the_least_recently_used_prefix_is_evicted_first() -> None:
    pool = BlockPool(4)
    old, new = pool.allocate(2), pool.allocate(2)
    for block, name in zip([*old, *new], numbered_hashes([10, 11, 20, 21]), strict=True):
        pool.commit(block, name)
    pool.free(old)
    pool.free(new)
    pool.allocate(1)
    assert pool.match(numbered_hashes([10, 11])) == old[:1]
    pool.allocate(1)
    assert pool.match(numbered_hashes([10])) == []
    assert pool.match(numbered_hashes([20, 21])) == new


def test_matching_again_makes_a_prefix_recently_used() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.commit(first, numbered_hash(10))
    pool.commit(second, numbered_hash(20))
    pool.free([first])
    pool.free([second])
    pool.retain([first])
    pool.free([first])
    pool.allocate(1)
    assert pool.match(numbered_hashes([10])) == [first]
    assert pool.match(numbered_hashes([20])) == []


def test_blank_blocks_are_used_before_cached_ones() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.commit(block, numbered_hash(10))
    pool.free([block])
    pool.allocate(1)
    assert pool.match(numbered_hashes([10])) == [block]


def test_a_hash_stays_with_the_block_that_had_it_first() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    assert pool.commit(first, numbered_hash(10)) == first
    assert pool.commit(second, numbered_hash(10)) == first
    assert pool.match(numbered_hashes([10])) == [first]
    pool.check([[first], [first, second]])  # whoever came second holds on to the first


def test_only_an_unshared_block_without_a_name_may_be_written() -> None:
    pool = BlockPool(3)
    own, shared, named = pool.allocate(3)
    pool.retain([shared])
    pool.commit(named, numbered_hash(10))
    assert [pool.is_own(block) for block in (own, shared, named)] == [True, False, False]
    pool.free([shared])
    assert pool.is_own(shared)


def test_one_block_never_gets_two_names() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    pool.commit(block, numbered_hash(10))
    with pytest.raises(InternalError, match="another"):
        pool.commit(block, numbered_hash(11))


def test_without_prefix_cache_nothing_is_found() -> None:
    pool = BlockPool(2, prefix_cache=False)
    (block,) = pool.allocate(1)
    pool.commit(block, numbered_hash(10))
    pool.free([block])
    assert pool.match(numbered_hashes([10])) == []
    assert pool.drain_events() == []


def test_events_tell_what_entered_and_left_the_cache() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    pool.commit(block, numbered_hash(10))
    assert pool.drain_events() == [BlockEvent("added", numbered_hash(10))]
    pool.free([block])
    pool.allocate(1)
    assert pool.drain_events() == [BlockEvent("removed", numbered_hash(10))]
    assert pool.drain_events() == []


def test_a_hash_that_came_and_went_between_drains_is_not_told() -> None:
    pool = BlockPool(1)
    for name in range(100):
        (block,) = pool.allocate(1)
        pool.commit(block, numbered_hash(name))
        pool.free([block])
    assert pool.drain_events() == [BlockEvent("added", numbered_hash(99))]
    assert pool.cached_hashes() == [numbered_hash(99)]


def test_freeing_too_often_is_an_internal_error() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.free(blocks)
    with pytest.raises(InternalError, match="more often"):
        pool.free(blocks)


def test_check_finds_a_reference_that_no_holder_explains() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(InternalError, match="1 references, 0 explained"):
        pool.check([])


def test_a_check_of_some_blocks_finds_what_is_wrong_with_them_alone() -> None:
    pool = BlockPool(8)
    blocks = pool.allocate(6)
    pool.free(blocks[:5])
    pool.check([], range(5))
    with pytest.raises(InternalError, match="KV block 5 has 1 references, 0 explained"):
        pool.check([], range(4, 8))
    pool.check([[5]], range(4, 8))


NAMES = {
    path: numbered_hash(number)
    for number, path in enumerate(["a", "b", "aa", "ab", "ba", "aaa", "aab", "aba"])
}


def parent_of(name: bytes) -> bytes | None:
    path = next(path for path, named in NAMES.items() if named == name)
    return NAMES.get(path[:-1])


def chain(path: str) -> list[bytes]:
    """The names of the blocks of a sequence: those of its prefixes."""
    return [NAMES[path[:length]] for length in range(1, len(path) + 1)]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("acccfr"), st.integers(0, 7), st.sampled_from(sorted(NAMES))), max_size=80
    )
)
def test_any_order_of_calls_keeps_counts_explained_events_exact_and_evicts_leaves_only(
    calls: list[tuple[str, int, str]],
) -> None:
    clock = FakeClock()
    pool = BlockPool(8, clock=clock)
    holders: list[list[int]] = []
    known: set[bytes] = set()
    for call, number, path in calls:
        if call == "a" and number <= pool.num_free:
            holders.append(pool.allocate(number))
        elif call == "c":  # a sequence comes: what is cached is shared, the rest computed and named
            found = pool.match(chain(path))
            pool.retain(found)
            missing = len(path) - len(found)
            if missing > pool.num_free:
                pool.free(found)
            else:
                fresh = pool.allocate(missing)
                for block, name in zip(fresh, chain(path)[len(found) :], strict=True):
                    assert pool.commit(block, name) == block
                holders.append(found + fresh)
        elif call == "f" and holders:
            pool.free(holders.pop(number % len(holders)))
        elif call == "r":  # what nobody has used for two calls gives its memory back, as far as there is time
            since_s = clock.monotonic_s() - 2.0
            pool.retire(since_s, since_s, number)
        clock.advance(1.0)
        assert pool.num_resident == pool.is_unused.count(0) >= pool.num_held
        pool.check(holders)
        cached = set(pool.cached_hashes())
        assert all(parent_of(name) is None or parent_of(name) in cached for name in cached)
        if number % 3 == 0:
            for kind, name in pool.drain_events():
                assert (name in known) == (kind == "removed")
                known ^= {name}
            assert known == cached


def test_one_name_stands_for_a_block_in_every_group_of_layers() -> None:
    pool = BlockPool(3, KvGroups(1, 2, 17))
    (name,) = numbered_hashes([10])
    blocks = pool.allocate(3)
    for group, block in enumerate(blocks):
        assert pool.commit(block, name, group) == block
    assert [pool.find(name, group) for group in range(3)] == blocks
    pool.free(blocks)
    pool.check([])
    pool.allocate(1)
    assert [pool.find(name, group) for group in range(3)] == [*blocks[:2], None]


def test_one_group_of_each_kind_is_told_of() -> None:
    groups = KvGroups(2, 2, 17)
    pool = BlockPool(4, groups)
    (name,) = numbered_hashes([10])
    told = [name, groups.windowed_hash(name)]
    blocks = pool.allocate(4)
    for group, block in enumerate(blocks):
        pool.commit(block, name, group)
    assert pool.drain_events() == [BlockEvent("added", each) for each in told]
    assert pool.cached_hashes() == told
    pool.free(blocks)
    pool.allocate(4)
    assert sorted(pool.drain_events()) == sorted(BlockEvent("removed", each) for each in told)
