"""Decide between the gateway's own region and another one, so that requests go home without flapping."""

from __future__ import annotations

import math
from dataclasses import dataclass

from services.gateway.fleet.best_route import BestRoute
from services.gateway.regions.route_cost import FULL_S, RouteCost
from shared.deadline import SYSTEM_CLOCK, Clock

NOTABLY = 1.25
NOTABLY_S = 0.05
"""A region is left for one that is sooner by both: less is no more than predictions are wrong by, and the
prefixes of later requests stay in one place."""
HOLD_S = 5.0
"""Requests stay away for so long after their own region could not serve them: it has to last."""
MOST_HOLD_S = 60.0
"""The longest such time: it doubles whenever the region is lost again soon."""
SOON_S = 60.0
"""It is lost again soon if that is within so long of when it was trusted again."""
SLOW_HOLD_S = 2.0
"""Requests stay away for so long after another region was notably sooner, while that one is not notably
later."""

HOME, NO_INSTANCE, FULL, DEADLINE, SOONER, HOLD = (
    "home",
    "no_instance",
    "full",
    "deadline",
    "sooner",
    "hold",
)
"""Why a request is where it is: at home, or else as its own region lacks an instance, has no room, would miss
the deadline, is notably later, or was not in order a moment ago."""


@dataclass(frozen=True, slots=True)
class RegionRoute:
    """The best route that begins to decode in a region, "" where nobody says one. `is_whole`: all of it is
    in there."""

    region: str
    best: BestRoute
    cost: RouteCost
    is_whole: bool


def is_notably_later(seconds: float, other_s: float) -> bool:
    return seconds > NOTABLY * other_s and seconds > NOTABLY_S + other_s


class Home:
    """The gateway's own region, for the requests of one model."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._is_lost = False
        self._lost_s = self._slow_s = -math.inf
        self._hold_s = HOLD_S

    def note_health(self, *, is_whole: bool) -> None:
        """The region has an instance of all that a request needs, or it has not."""
        now_s = self._clock.monotonic_s()
        if is_whole:
            self._is_lost = False
            return
        if not self._is_lost:
            again = now_s < self._lost_s + self._hold_s + SOON_S
            self._hold_s = min(MOST_HOLD_S, 2 * self._hold_s) if again else HOLD_S
        self._is_lost = True
        self._lost_s = now_s

    @property
    def is_trusted(self) -> bool:
        """Whether nothing was wrong with it lately."""
        now_s = self._clock.monotonic_s()
        return now_s >= self._lost_s + self._hold_s and now_s >= self._slow_s + SLOW_HOLD_S

    def choose(
        self, near: RegionRoute | None, far: RegionRoute | None, left_s: float
    ) -> tuple[RegionRoute | None, str]:
        """Return one of both, and why; None where neither is there.

        `near` is whole, or None; `left_s` is the time until the first token's deadline.
        """
        if near is None or far is None:
            return near or far, HOME if far is None else NO_INSTANCE
        if not far.is_whole:  # better than none, but no better than a whole one
            return near, HOME
        why = self._why_away(near.cost, far.cost, left_s)
        return (near if why == HOME else far), why

    def _why_away(self, near: RouteCost, far: RouteCost, left_s: float) -> str:
        """Return why a request goes away, HOME where it does not."""
        now_s = self._clock.monotonic_s()
        if is_notably_later(near.waits_s, far.waits_s):
            self._slow_s = now_s
        if near.waits_s >= FULL_S > far.waits_s:
            return FULL
        if (near.first_token_s > left_s) != (far.first_token_s > left_s):
            return DEADLINE if near.first_token_s > left_s else HOME
        if is_notably_later(near.seconds, far.seconds):
            return SOONER
        was_slow = now_s < self._slow_s + SLOW_HOLD_S and not is_notably_later(far.seconds, near.seconds)
        return HOLD if was_slow or now_s < self._lost_s + self._hold_s else HOME
