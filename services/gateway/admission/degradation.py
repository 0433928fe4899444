"""Decide how much is left out under pressure: one level up or down at a time, without flapping."""

from __future__ import annotations

from shared.deadline import SYSTEM_CLOCK, Clock
from shared.degradation import DegradationLevel

RISE_AT: dict[DegradationLevel, float] = {
    DegradationLevel.SHORT_DRAFTS: 0.2,
    DegradationLevel.NO_DRAFTS: 0.3,
    DegradationLevel.RERANK: 0.4,
    DegradationLevel.RETRIEVAL_DEPTH: 0.5,
    DegradationLevel.RETRIEVAL: 0.6,
    DegradationLevel.LOW_PRIORITY: 0.8,
    DegradationLevel.NEW_REQUESTS: 1.0,
}
"""The pressure that each level is entered at. 1: whoever comes now waits for a whole first-token budget."""
FALL_SHARE = 0.6
"""A level is left below this share of the pressure that it is entered at."""
RISE_AFTER_S = 0.5
"""The time for which the pressure must stay that high before the next level is entered."""
FALL_AFTER_S = 3.0
"""The time for which it must stay that low before a level is left."""


class Degradation:
    """The level of this gateway, from the pressure that it is told of. Pure: it only reads the clock."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._high_since_s: float | None = None
        self._low_since_s: float | None = None
        self.level = DegradationLevel.NONE

    def observe(self, pressure: float) -> bool:
        """Whether that changed the level."""
        now_s = self._clock.monotonic_s()
        if not self._is_high(pressure):
            self._high_since_s = None
        elif self._high_since_s is None:
            self._high_since_s = now_s
        if not self._is_low(pressure):
            self._low_since_s = None
        elif self._low_since_s is None:
            self._low_since_s = now_s
        if self._high_since_s is not None and now_s - self._high_since_s >= RISE_AFTER_S:
            return self._step(+1)
        if self._low_since_s is not None and now_s - self._low_since_s >= FALL_AFTER_S:
            return self._step(-1)
        return False

    def _is_high(self, pressure: float) -> bool:
        return self.level < DegradationLevel.NEW_REQUESTS and pressure >= RISE_AT[self._next(+1)]

    def _is_low(self, pressure: float) -> bool:
        return self.level > DegradationLevel.NONE and pressure < FALL_SHARE * RISE_AT[self.level]

    def _step(self, direction: int) -> bool:
        """The next step needs its own time."""
        self.level = self._next(direction)
        self._high_since_s = self._low_since_s = None
        return True

    def _next(self, direction: int) -> DegradationLevel:
        return DegradationLevel(self.level + direction)
