"""Levels of degradation: one step at a time, each in its own time, and none to and fro."""

from __future__ import annotations

import random

import pytest

from services.gateway.admission.admission import check_pressure, check_wait, sheds_class
from services.gateway.admission.degradation import (
    FALL_AFTER_S,
    FALL_SHARE,
    RISE_AFTER_S,
    RISE_AT,
    Degradation,
)
from shared.degradation import DegradationLevel
from shared.errors import Overloaded
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


class House:
    """Seats for requests of two seconds, a queue by class, and the gateway's own rules at its door."""

    SLOTS, SERVICE_S, BUDGET_S, TICK_S = 16, 2.0, 10.0, 0.01

    def __init__(self, low_share: float) -> None:
        self.clock = FakeClock()
        self.degradation = Degradation(self.clock)
        self.steps = 0
        self.served = 0
        self._low_share = low_share
        self._random = random.Random(1)
        self._waiting: list[tuple[int, float]] = []
        self._ends_s: list[float] = []

    def run(self, load: float, seconds: float) -> None:
        """`load` 1 is as much as the slots can serve."""
        per_tick = load * self.TICK_S * self.SLOTS / self.SERVICE_S
        for _ in range(round(seconds / self.TICK_S)):
            if self._random.random() < per_tick:
                self._come(3 if self._random.random() < self._low_share else 2)
            self._serve()
            self.steps += self.degradation.observe(self._wait_s(3) / self.BUDGET_S)
            self.clock.advance(self.TICK_S)

    def _wait_s(self, priority_class: int) -> float:
        if len(self._ends_s) < self.SLOTS:
            return 0.0
        ahead = sum(1 for waiting, _ in self._waiting if waiting <= priority_class)
        return (ahead + 1) * self.SERVICE_S / self.SLOTS

    def _come(self, priority_class: int) -> None:
        pressure = self._wait_s(3) / self.BUDGET_S
        try:
            if sheds_class(self.degradation.level, priority_class):
                check_pressure(pressure, self.BUDGET_S)
            check_wait(self._wait_s(priority_class), self.BUDGET_S)
        except Overloaded:
            return
        self._waiting.append((priority_class, self.clock.monotonic_s()))
        self._waiting.sort()

    def _serve(self) -> None:
        now_s = self.clock.monotonic_s()
        self._ends_s = [end_s for end_s in self._ends_s if end_s > now_s]
        self._waiting = [waiting for waiting in self._waiting if now_s - waiting[1] < self.BUDGET_S]
        while self._waiting and len(self._ends_s) < self.SLOTS:
            self._waiting.pop(0)
            self._ends_s.append(now_s + self.SERVICE_S * self._random.uniform(0.5, 1.5))
            self.served += 1


@pytest.mark.parametrize("low_share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("load", [3.0, 10.0])
def test_sustained_overload_climbs_once_and_keeps_every_slot_taken(load: float, low_share: float) -> None:
    house = House(low_share)
    house.run(load, 60.0)
    assert house.degradation.level >= DegradationLevel.LOW_PRIORITY
    assert house.steps <= len(RISE_AT)
    assert house.served >= 0.95 * 60.0 * House.SLOTS / House.SERVICE_S


def test_a_load_that_can_be_served_degrades_nothing() -> None:
    house = House(0.3)
    house.run(0.8, 60.0)
    assert (house.steps, house.degradation.level) == (0, DegradationLevel.NONE)


@pytest.mark.parametrize(("heard", "level"), [(-3, 0), (0, 0), (5, 5), (7, 7), (99, 7)])
def test_a_level_that_is_none_counts_as_the_nearest(heard: int, level: int) -> None:
    assert DegradationLevel.heard(heard) is DegradationLevel(level)
