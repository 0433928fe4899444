"""Instances that one request does not try again for a moment, because they failed it."""

from __future__ import annotations

from collections.abc import Iterable

from shared.bus.fleet import InstanceView
from shared.deadline import SYSTEM_CLOCK, Clock

BUSY_S = 0.25
"""How long an instance that was full is avoided: its next heartbeat tells more."""
GONE_S = 0.75
"""How long an instance that did not answer is avoided: by then the fleet view knows whether it is dead."""
FAILED_S = 5.0
"""How long an instance that failed a placement is avoided, where there is another."""
FIRST_BACKOFF_S = 0.005
MAX_BACKOFF_S = 0.1


class AvoidedInstances:
    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._busy: dict[tuple[str, str], float] = {}
        self._gone: dict[tuple[str, str, int], float] = {}

    def add_busy(self, view: InstanceView) -> None:
        self._busy[view.heartbeat.role, view.heartbeat.instance] = self._clock.monotonic_s() + BUSY_S

    def add_failed(self, view: InstanceView) -> None:
        """It took the request and could not go on with it."""
        self._busy[view.heartbeat.role, view.heartbeat.instance] = self._clock.monotonic_s() + FAILED_S

    def add_gone(self, view: InstanceView) -> None:
        """Only this life of the instance: a restarted one is welcome at once."""
        self._gone[_life(view)] = self._clock.monotonic_s() + GONE_S

    def not_gone(self, views: Iterable[InstanceView]) -> list[InstanceView]:
        now_s = self._clock.monotonic_s()
        return [view for view in views if self._gone.get(_life(view), 0.0) <= now_s]

    def busy(self) -> set[tuple[str, str]]:
        """(role, instance) of those that were full, or failed, a moment ago."""
        now_s = self._clock.monotonic_s()
        return {key for key, until_s in self._busy.items() if until_s > now_s}


def backoff_s(attempt: int) -> float:
    """How long to wait after failed attempt number `attempt`, counted from 0."""
    return min(FIRST_BACKOFF_S * 2.0**attempt, MAX_BACKOFF_S)


def _life(view: InstanceView) -> tuple[str, str, int]:
    beat = view.heartbeat
    return beat.role, beat.instance, beat.incarnation
