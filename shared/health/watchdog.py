"""The watchdog of a process: whoever has work and does not move is found, told of, and ended.

Stalls are counted in looks: time in which the watchdog itself was held up (a stopped process, a machine
without cores to spare, a call that keeps the interpreter's lock) is nobody's fault and is not counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from shared.deadline import SYSTEM_CLOCK, Clock
from shared.health.activity import Activity
from shared.ticks import seconds_to_tick

log = structlog.get_logger()

LOOK_S = 0.25
REST_LOOK_S = 2.0
"""The most between two looks at a process in which nothing was busy; it may be half of the limit at most."""
MOST_PER_LOOK_S = 2 * LOOK_S
"""The most that a look counts, or its pause where that was longer; the rest of its delay is our own lag."""
WATCHDOG_S = 5.0
"""Work may be busy without moving for so long before the process counts as stalled."""
END_FACTOR = 3
"""The process ends after so many times that: what was only slow has had its time."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A stall: since when `name` has been busy without moving."""

    name: str
    stalled_s: float

    def __str__(self) -> str:
        return f"{self.name} has not moved for {self.stalled_s:.1f} s though it has work"


NO_STALL = Stall("", 0.0)


class Watchdog:
    """`activities` is asked at each look, `end` is told when one of them stalls for too long; both in the
    watchdog's thread. Of those that stall alike the first is named: the loop comes before what runs on it."""

    def __init__(
        self,
        activities: Callable[[], Iterable[Activity]],
        end: Callable[[Stall], None],
        *,
        limit_s: float = WATCHDOG_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._activities = activities
        self._end = end
        self._limit_s = limit_s
        self._clock = clock
        self._looked_s = clock.monotonic_s()
        self._seen: dict[Activity, tuple[int, float]] = {}  # those busy at the last look: moved, stalled_s
        self._thread: threading.Thread | None = None
        self._running = threading.Lock()
        self._running.acquire()
        self.pause_s = LOOK_S
        """The pause until the next look: a process at rest is woken less often, at ticks."""
        self.worst = NO_STALL
        """The activity that has stalled longest; NO_STALL while everything moves."""

    @property
    def stalled(self) -> bool:
        return self.worst.stalled_s >= self._limit_s

    @property
    def why(self) -> str:
        """A sentence while something is stalled, else ""."""
        worst = self.worst
        return str(worst) if worst.stalled_s >= self._limit_s else ""

    def start(self) -> None:
        """Look from now on, in a thread."""
        self._looked_s = self._clock.monotonic_s()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No look follows."""
        if self._running.locked():
            self._running.release()
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """One look at everything."""
        now_s = self._clock.monotonic_s()
        passed_s = min(now_s - self._looked_s, max(MOST_PER_LOOK_S, self.pause_s))
        self._looked_s = now_s
        seen, worst, at_rest = {}, NO_STALL, True
        for activity in self._activities():
            at_rest = at_rest and not activity.busy
            activity.prod()
            moved, stalled_s = activity.moved, 0.0
            if activity.busy:
                before, before_s = self._seen.get(activity, (-1, 0.0))
                stalled_s = before_s + passed_s if moved == before else 0.0
                seen[activity] = moved, stalled_s
            if stalled_s > worst.stalled_s:
                worst = Stall(activity.name, stalled_s)
        self._seen, self.pause_s = seen, self._rest_s() if at_rest else LOOK_S
        self._show(worst)
        if worst.stalled_s >= END_FACTOR * self._limit_s:
            self._end(worst)

    def _rest_s(self) -> float:
        return seconds_to_tick(max(LOOK_S, min(REST_LOOK_S, self._limit_s / 2)), self._clock)

    def _show(self, worst: Stall) -> None:
        was_stalled, self.worst = self.stalled, worst
        if self.stalled and not was_stalled:
            log.error("stalled", what=worst.name, stalled_s=round(worst.stalled_s, 1))
        elif was_stalled and not self.stalled:
            log.warning("moves_again")

    def _run(self) -> None:
        while not self._running.acquire(timeout=self.pause_s):
            try:
                self.check()
            except Exception:  # an activity that cannot be looked at must not end the watch over the others
                log.exception("watchdog_failed")
