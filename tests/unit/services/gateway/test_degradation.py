"""Levels of degradation: one step at a time, each in its own time, and none to and fro."""

from __future__ import annotations

import pytest

from services.gateway.degradation import FALL_AFTER_S, FALL_SHARE, RISE_AFTER_S, RISE_AT, Degradation
from shared.degradation import DegradationLevel
from tests.support.clock import FakeClock

LEVELS = list(DegradationLevel)
JUST = 1e-6


class Ladder:
    """A degradation whose pressure a test sets."""

    def __init__(self, level: DegradationLevel = DegradationLevel.NONE) -> None:
        self.clock = FakeClock()
        self.degradation = Degradation(self.clock)
        self.degradation.level = level

    def hold(self, pressure: float, seconds: float) -> list[DegradationLevel]:
        """The levels that were entered meanwhile."""
        entered = []
        for _ in range(round(seconds * 100)):
            if self.degradation.observe(pressure):
                entered.append(self.degradation.level)
            self.clock.advance(0.01)
        return entered


def test_the_order_is_drafts_rerank_retrieval_then_requests() -> None:
    assert [level.word for level in LEVELS] == [
        "none",
        "short_drafts",
        "no_drafts",
        "rerank",
        "retrieval_depth",
        "retrieval",
        "low_priority",
        "new_requests",
    ]
    assert list(RISE_AT) == LEVELS[1:]
    assert list(RISE_AT.values()) == sorted(RISE_AT.values())


def test_pressure_climbs_every_level_in_order_one_at_a_time() -> None:
    ladder = Ladder()
    assert ladder.hold(5.0, len(RISE_AT) * (RISE_AFTER_S + 0.02) + 5.0) == LEVELS[1:]


def test_a_level_is_entered_only_after_its_time() -> None:
    ladder = Ladder()
    assert ladder.hold(5.0, RISE_AFTER_S - 0.02) == []
    assert ladder.hold(5.0, 0.05) == [DegradationLevel.SHORT_DRAFTS]
    assert ladder.hold(5.0, RISE_AFTER_S - 0.05) == []


def test_a_burst_shorter_than_that_changes_nothing() -> None:
    ladder = Ladder()
    for _ in range(20):
        assert ladder.hold(5.0, RISE_AFTER_S - 0.05) == []
        assert ladder.hold(0.0, 0.05) == []


@pytest.mark.parametrize("level", LEVELS[1:], ids=lambda level: level.word)
def test_a_level_is_entered_at_its_own_pressure_and_not_below(level: DegradationLevel) -> None:
    below = DegradationLevel(level - 1)
    assert Ladder(below).hold(RISE_AT[level] - JUST, 10.0) in ([], LEVELS[1:below])
    assert Ladder(below).hold(RISE_AT[level], 1.0)[:1] == [level]


@pytest.mark.parametrize("level", LEVELS[1:], ids=lambda level: level.word)
def test_a_level_is_left_below_a_lower_pressure_after_a_longer_time(level: DegradationLevel) -> None:
    low = FALL_SHARE * RISE_AT[level]
    assert DegradationLevel(level - 1) not in Ladder(level).hold(low, 10 * FALL_AFTER_S)
    assert Ladder(level).hold(low - JUST, FALL_AFTER_S - 0.02) == []
    assert Ladder(level).hold(low - JUST, FALL_AFTER_S + 0.05) == [DegradationLevel(level - 1)]
    assert FALL_AFTER_S > RISE_AFTER_S


def test_calm_leaves_every_level_one_at_a_time() -> None:
    ladder = Ladder(DegradationLevel.NEW_REQUESTS)
    assert ladder.hold(0.0, 7 * (FALL_AFTER_S + 0.02) + 5.0) == LEVELS[-2::-1]


def test_a_pressure_around_the_threshold_does_not_flap() -> None:
    ladder = Ladder()
    entered = []
    at = RISE_AT[DegradationLevel.SHORT_DRAFTS]
    for _ in range(30):
        entered += ladder.hold(at * 1.05, 1.0)
        entered += ladder.hold(at * 0.8, 1.0)
    assert entered == [DegradationLevel.SHORT_DRAFTS]


@pytest.mark.parametrize(("heard", "level"), [(-3, 0), (0, 0), (5, 5), (7, 7), (99, 7)])
def test_a_level_that_is_none_counts_as_the_nearest(heard: int, level: int) -> None:
    assert DegradationLevel.heard(heard) is DegradationLevel(level)
