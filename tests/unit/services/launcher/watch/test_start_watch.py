"""A start is given up when it stands still, not when it takes long."""

from __future__ import annotations

from services.launcher.watch.start_watch import StartWatch, busy_words
from tests.support.clock import FakeClock


def test_who_does_not_move_is_late_after_the_limit_and_not_before() -> None:
    clock = FakeClock()
    watch = StartWatch(10, clock=clock.monotonic_s)
    clock.advance(9.5)
    assert watch.late({"decode-0": 0}) == set()
    clock.advance(0.5)
    assert watch.late({"decode-0": 0}) == {"decode-0"}


def test_who_moves_on_has_the_limit_again() -> None:
    clock = FakeClock()
    watch = StartWatch(10, clock=clock.monotonic_s)
    for step in range(1, 6):
        clock.advance(9)
        assert watch.late({"retriever-0": step}) == set()
    clock.advance(9)
    assert watch.late({"retriever-0": 5}) == set()
    clock.advance(1)
    assert watch.late({"retriever-0": 5}) == {"retriever-0"}


def test_one_that_moves_on_excuses_no_other() -> None:
    clock = FakeClock()
    watch = StartWatch(10, clock=clock.monotonic_s)
    clock.advance(10)
    assert watch.late({"retriever-0": 1, "decode-0": 0}) == {"decode-0"}


def test_a_start_that_had_no_core_says_so() -> None:
    assert busy_words(5.9, 2) == ""
    assert busy_words(6.2, 2) == "This machine is busy: 6 programs want its 2 cores. "
