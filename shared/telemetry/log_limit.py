"""Bound the lines of one kind that a process logs: no stranger and no repeated fault fills a disk."""

from __future__ import annotations

from collections import Counter

import structlog
from structlog.typing import EventDict, WrappedLogger

from shared.deadline import SYSTEM_CLOCK, Clock

MAX_LINES_PER_S = 200
"""The most lines of one event in a second."""
MAX_LIBRARY_LINES_PER_S = 10
"""The same for each logger of a library: what it says at a time is a traceback over many lines."""


class LogLimit:
    """A processor of structlog. The first line of the next second says how many were left out, of what."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._second = -1
        self._lines: Counter[str] = Counter()

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """Raises DropEvent for a line too many."""
        second = int(self._clock.monotonic_s())
        if second != self._second:
            if left_out := self._left_out():
                event["left_out"] = left_out
            self._second, self._lines = second, Counter()
        name = f"library {event['logger']}" if "logger" in event else str(event["event"])
        self._lines[name] += 1
        if self._lines[name] > _limit(name):
            raise structlog.DropEvent
        return event

    def _left_out(self) -> dict[str, int]:
        """Return how many lines of each kind were one too many, in the second that has ended."""
        return {name: count - _limit(name) for name, count in self._lines.items() if count > _limit(name)}


def _limit(name: str) -> int:
    return MAX_LIBRARY_LINES_PER_S if name.startswith("library ") else MAX_LINES_PER_S
