"""The timeline of a request: named phases that partition [start, last mark) without gap or overlap.

Times are integer microseconds since the start, so sums are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.deadline import SYSTEM_CLOCK, Clock

MAX_PHASES = 64
"""The most phases of a timeline: of a request that is routed anew again and again, the last ones are one."""
LATER = "later"
"""The name of that one."""


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    start_us: int
    duration_us: int


class Timeline:
    """Marks close phases; what lies between two marks has exactly one name."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, start_s: float | None = None) -> None:
        """`start_s` on the monotonic clock, None: now."""
        self._clock = clock
        self._start_s = clock.monotonic_s() if start_s is None else start_s
        self._phases: list[Phase] = []
        self._last_us = 0
        self._closed = False
        self.ttft_us: int | None = None
        self.clamped = 0
        """The times that measured parts claimed more time than had passed and were cut."""

    def mark(self, phase: str) -> None:
        """Everything since the last mark was `phase`."""
        self._append(phase, self.elapsed_us() - self._last_us)

    def split(self, phase: str, parts: Sequence[tuple[str, int]]) -> None:
        """Everything since the last mark was `parts` (name, measured µs) in order, the rest `phase`.

        Parts come from other clocks. Where they claim more than has passed (or less than nothing)
        they are cut to what is left, and `clamped` counts it.
        """
        end_us = self.elapsed_us()
        for name, measured_us in parts:
            duration_us = min(max(0, measured_us), end_us - self._last_us)
            self.clamped += duration_us != measured_us
            self._append(name, duration_us)
        self._append(phase, end_us - self._last_us)

    def close(self) -> None:
        """Later marks change nothing."""
        self._closed = True

    def first_token(self) -> None:
        """The first token went to the client at the last mark. Later calls change nothing."""
        if self.ttft_us is None:
            self.ttft_us = self._last_us

    def phases(self) -> list[Phase]:
        """Closed phases in order; their durations sum to the time of the last mark."""
        return list(self._phases)

    @property
    def marked_us(self) -> int:
        """The time of the last mark."""
        return self._last_us

    def elapsed_us(self) -> int:
        """µs since the start, never before the last mark."""
        return max(self._last_us, round((self._clock.monotonic_s() - self._start_s) * 1e6))

    def _append(self, name: str, duration_us: int) -> None:
        if self._closed:
            return
        if len(self._phases) < MAX_PHASES:
            self._phases.append(Phase(name, self._last_us, duration_us))
        else:
            last = self._phases[-1]
            self._phases[-1] = Phase(LATER, last.start_us, last.duration_us + duration_us)
        self._last_us += duration_us
