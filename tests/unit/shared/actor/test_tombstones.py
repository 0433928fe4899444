"""A cancel that came first is remembered, but neither for ever nor without bound."""

from __future__ import annotations

from shared.actor import Tombstones
from tests.support.clock import FakeClock


def test_a_tombstone_refuses_its_epoch_and_earlier_ones_only() -> None:
    stones = Tombstones()
    stones.add("r", 2, "cancelled")
    assert stones.refuses("r", 1) == "cancelled"
    assert stones.refuses("r", 2) == "cancelled"
    assert stones.refuses("r", 3) == ""
    assert stones.refuses("other", 1) == ""


def test_a_late_cancel_of_an_earlier_epoch_does_not_weaken_the_later_one() -> None:
    stones = Tombstones()
    stones.add("r", 3, "expired")
    stones.add("r", 1, "replaced")
    assert stones.refuses("r", 3) == "expired"


def test_a_tombstone_expires() -> None:
    clock = FakeClock()
    stones = Tombstones(ttl_s=10, clock=clock)
    stones.add("old", 1, "cancelled")
    clock.advance(5)
    stones.add("new", 1, "cancelled")
    clock.advance(5)
    assert stones.refuses("old", 1) == ""
    assert stones.refuses("new", 1) == "cancelled"
    assert len(stones) == 1


def test_the_oldest_makes_room_when_the_limit_is_reached() -> None:
    stones = Tombstones(limit=2)
    for name in ("a", "b", "c"):
        stones.add(name, 1, "cancelled")
    assert [stones.refuses(name, 1) for name in ("a", "b", "c")] == ["", "cancelled", "cancelled"]


def test_what_is_not_known_is_not_refused_whatever_the_epoch() -> None:
    stones = Tombstones()
    stones.add("r", 2, "cancelled")
    stones.add("s", 1, "mistaken", by="decode-0")
    assert stones.knows("r", "decode-1")
    assert stones.knows("s", "decode-0")
    assert not stones.knows("s", "decode-1")
    assert not stones.knows("t", "decode-0")
