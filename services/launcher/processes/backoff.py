"""Wait before a service that ended is started again."""

from __future__ import annotations

FIRST_S = 0.1
MAX_S = 5.0
RESET_AFTER_S = 30.0
"""A process that was ready for this long starts over with the first delay. Loading does not count: a service
that loads for a minute and then crashes would be started without a pause for ever."""


class Backoff:
    """100 ms, doubling up to 5 s; back to the start after 30 s of service."""

    def __init__(
        self, *, first_s: float = FIRST_S, max_s: float = MAX_S, reset_after_s: float = RESET_AFTER_S
    ) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._reset_after_s = reset_after_s
        self._next_s = first_s

    def delay_s(self, served_s: float) -> float:
        """The wait after a process that was ready for `served_s`."""
        if served_s >= self._reset_after_s:
            self._next_s = self._first_s
        delay_s = self._next_s
        self._next_s = min(self._max_s, self._next_s * 2)
        return delay_s
