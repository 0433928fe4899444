"""Measure how long we ourselves could not listen, lately: whose silence that explains is not to blame for
it."""

from __future__ import annotations

from collections import deque

from shared.deadline import SYSTEM_CLOCK, Clock

LEAST_S = 0.01
"""Every loop is a little late."""
REMEMBERED = 1024
"""The latest lags: a minute of a loop that is late at every look."""


class OwnLag:
    """A loop that was held up, a connection that was gone."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lags: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)  # when it ended, how long it was

    def note(self, seconds: float) -> None:
        """It ends now."""
        if seconds >= LEAST_S:
            self._lags.append((self._clock.monotonic_s(), seconds))

    def within_s(self, seconds: float) -> float:
        """Return how much of the last `seconds` it was."""
        now_s = self._clock.monotonic_s()
        lag_s = 0.0
        for end_s, length_s in reversed(self._lags):
            if now_s - end_s >= seconds:
                break
            lag_s += min(length_s, seconds - (now_s - end_s))
        return lag_s
