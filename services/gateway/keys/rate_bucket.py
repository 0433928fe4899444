"""Let through so much a minute, at an even rate. Pure, with a clock."""

from __future__ import annotations

from shared.deadline import Clock

MINUTE_S = 60.0
ROUNDING = 1e-6
"""The error that is forgiven: a client that waited exactly as long as it was told finds what it waits for."""


class RateBucket:
    """Holds up to one minute's worth and fills at an even rate: who was idle for a minute may use it at once.

    It may be overdrawn, by what turns out to be more than was asked for; then it fills up from below zero.
    """

    def __init__(self, per_min: int, clock: Clock) -> None:
        self._per_min = per_min
        self._clock = clock
        self._level = float(per_min)
        self._at_s = clock.monotonic_s()
        self.taken = 0.0
        """The sum of all that was taken, less what was given back."""

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount` is there, 0 when it is; never more than the bucket can hold is asked for."""
        self._fill()
        missing = amount - self._level
        return missing * MINUTE_S / self._per_min if missing > ROUNDING else 0.0

    def take(self, amount: float) -> None:
        """A negative amount is given back."""
        self._fill()
        self._level -= amount
        self.taken += amount

    @property
    def level(self) -> float:
        """Return how much may be taken now, below zero where it is overdrawn."""
        self._fill()
        return self._level

    def lower(self, level: float) -> None:
        """Hold no more than that from now on."""
        self._fill()
        self._level = min(self._level, level)

    def refill(self, level: float, since_s: float) -> None:
        """Hold what `level` at that time has become, with nothing taken since, unless it holds more."""
        self._fill()
        become = level + (self._at_s - since_s) * self._per_min / MINUTE_S
        self._level = max(self._level, min(become, self._per_min))

    def change_rate(self, per_min: int) -> None:
        self._fill()
        self._per_min = per_min
        self._level = min(self._level, per_min)

    def _fill(self) -> None:
        now_s = self._clock.monotonic_s()
        gained = (now_s - self._at_s) * self._per_min / MINUTE_S
        self._level, self._at_s = min(self._level + gained, self._per_min), now_s
