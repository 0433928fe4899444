"""Values of many owners: a share for each, all of it for who is alone, and exact counts whatever happens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.fair_cache import FairCache


def held(cache: FairCache[int, str], owner: str, keys: range = range(1000)) -> list[int]:
    return [key for key in keys if cache.peek(owner, key) is not None]


def test_an_owner_that_is_alone_has_all_the_room() -> None:
    cache: FairCache[int, str] = FairCache(4)
    for key in range(6):
        assert cache.put("acme", key, "value")
    assert held(cache, "acme") == [2, 3, 4, 5]


def test_what_is_used_least_lately_goes_and_a_look_is_no_use() -> None:
    cache: FairCache[int, str] = FairCache(2)
    cache.put("acme", 0, "a")
    cache.put("acme", 1, "b")
    assert cache.get("acme", 0) == "a"
    assert cache.peek("acme", 1) == "b"
    cache.put("acme", 2, "c")
    assert held(cache, "acme") == [0, 2]


def test_who_is_over_its_share_gives_way_to_a_newcomer_until_they_are_even() -> None:
    cache: FairCache[int, str] = FairCache(10)
    for key in range(10):
        cache.put("first", key, "value")
    for key in range(100):
        cache.put("second", key, "value")
    assert held(cache, "first") == [5, 6, 7, 8, 9]
    assert held(cache, "second") == [95, 96, 97, 98, 99]


def test_who_has_most_bytes_gives_way_where_bytes_are_short_and_most_entries_where_those_are() -> None:
    cache: FairCache[int, str] = FairCache(8, 80)
    for key in range(2):
        cache.put("large", key, "value", 30)
    for key in range(6):
        cache.put("small", key, "value", 1)
    cache.put("third", 0, "value", 1)  # entries are short
    assert (len(held(cache, "large")), len(held(cache, "small"))) == (2, 5)
    cache.put("third", 1, "value", 20)  # bytes are short
    assert (len(held(cache, "large")), len(held(cache, "small"))) == (1, 5)


def test_what_would_take_a_smaller_owner_s_room_is_not_kept() -> None:
    cache: FairCache[int, str] = FairCache(10, 30)
    for owner in ("a", "b", "c"):
        assert cache.put(owner, 0, "value", 10)
    assert not cache.put("d", 0, "value", 11)
    assert [len(held(cache, owner)) for owner in "abcd"] == [1, 1, 1, 0]
    assert cache.put("d", 0, "value", 10)


def test_what_does_not_fit_alone_is_not_kept() -> None:
    assert not FairCache[int, str](1, 10).put("a", 0, "value", 11)
    assert not FairCache[int, str](0, 10).put("a", 0, "value", 1)


def test_what_gives_way_is_told_and_what_is_taken_out_is_not() -> None:
    told: list[str] = []
    cache: FairCache[int, str] = FairCache(1, pushed_out=told.append)
    cache.put("a", 0, "old")
    cache.put("a", 0, "new")
    assert cache.pop("a", 0) == "new"
    assert cache.pop("a", 0) is None
    cache.put("a", 1, "first")
    cache.put("a", 2, "second")
    assert told == ["first"]


puts = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 12)), max_size=80)


@given(puts)
def test_bounds_hold_and_an_owner_within_its_share_loses_nothing(
    done: list[tuple[str, int, int]],
) -> None:
    most_entries, most_bytes, owners = 9, 36, 3
    cache: FairCache[int, tuple[str, int, int]] = FairCache(most_entries, most_bytes)
    for owner, key, nbytes in done:
        before = {other: _part(cache, other) for other in "abc" if other != owner}
        cache.put(owner, key, (owner, key, nbytes), nbytes)
        for other, part in before.items():
            if len(part) <= most_entries // owners and sum(part) <= most_bytes // owners:
                assert _part(cache, other) == part
        sizes = [value[2] for value in cache]
        assert (len(cache), cache.held_bytes) == (len(sizes), sum(sizes))
        assert len(sizes) <= most_entries
        assert sum(sizes) <= most_bytes


def _part(cache: FairCache[int, tuple[str, int, int]], owner: str) -> list[int]:
    """Return the sizes of what an owner has."""
    return [value[2] for value in cache if value[0] == owner]
