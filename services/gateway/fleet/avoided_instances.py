"""Instances that one request does not try again for a moment, because they failed it."""

from __future__ import annotations

from collections.abc import Iterable

from services.gateway.fleet.breakers import Life, life_of
from shared.bus.fleet import InstanceView
from shared.deadline import SYSTEM_CLOCK, Clock

REFUSED_S = 0.3
"""A refusal is old with the instance's next heartbeat, which tells of its room, or after this."""
GONE_S = 0.75
"""An instance that did not answer is avoided for so long: by then the fleet view knows whether it is dead."""
FAILED_S = 5.0
"""An instance that failed a route is avoided for so long, where there is another."""
FIRST_BACKOFF_S = 0.005
MAX_BACKOFF_S = 0.25


class AvoidedInstances:
    """The instances that one request avoids, by their lives: a restarted one is welcome at once."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._refused_s: dict[Life, float] = {}  # when
        self._room_s: dict[Life, float] = {}  # when it will have room, by its own word
        self._failed: dict[Life, float] = {}  # until when
        self._gone: dict[Life, tuple[float, int]] = {}
        """The time until which it is avoided, and how often it had reconnected by then."""

    def add_refused(self, view: InstanceView, retry_after_s: float) -> None:
        """It had no room, and knows of none before that time; 0 when it does not know."""
        now_s = self._clock.monotonic_s()
        self._refused_s[life_of(view)], self._room_s[life_of(view)] = now_s, now_s + retry_after_s

    def room_in_s(self, views: Iterable[InstanceView]) -> float:
        """Return how long it takes until the first of `views` has room, as far as they have said."""
        now_s = self._clock.monotonic_s()
        return max(
            0.0, min((self._room_s.get(life_of(view), now_s) for view in views), default=now_s) - now_s
        )

    def add_failed(self, view: InstanceView) -> None:
        """It took the request and could not go on with it."""
        self._failed[life_of(view)] = self._clock.monotonic_s() + FAILED_S

    def add_gone(self, view: InstanceView) -> None:
        """It did not answer."""
        until_s = self._clock.monotonic_s() + GONE_S
        self._gone[life_of(view)] = until_s, view.heartbeat.reconnects

    def not_gone(self, views: Iterable[InstanceView]) -> list[InstanceView]:
        """Return those of `views` that may be asked: one that has reconnected since says that it is there."""
        now_s = self._clock.monotonic_s()
        return [view for view in views if not self._is_gone(view, now_s)]

    def _is_gone(self, view: InstanceView, now_s: float) -> bool:
        until_s, reconnects = self._gone.get(life_of(view), (0.0, 0))
        return now_s < until_s and view.heartbeat.reconnects == reconnects

    def failed(self, views: Iterable[InstanceView]) -> set[tuple[str, str]]:
        """Return those of `views`, as (role, instance), that failed the request a moment ago."""
        now_s = self._clock.monotonic_s()
        return {life_of(view)[:2] for view in views if self._failed.get(life_of(view), 0.0) > now_s}

    def refused(self, views: Iterable[InstanceView]) -> set[tuple[str, str]]:
        """Return those of `views`, as (role, instance), that had no room and have not been heard of since."""
        now_s = self._clock.monotonic_s()
        return {
            life_of(view)[:2]
            for view in views
            if (at_s := self._refused_s.get(life_of(view))) is not None
            and view.last_seen_s <= at_s
            and now_s < at_s + REFUSED_S
        }


def backoff_s(attempt: int) -> float:
    """Return how long to wait after failed attempt number `attempt`, counted from 0."""
    return min(FIRST_BACKOFF_S * 2.0**attempt, MAX_BACKOFF_S)
