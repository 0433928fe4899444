"""Limit how long a start may take: as long as it moves on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

BUSY_LOAD = 3.0
"""The load of each core from which on a start that took too long is said to have had too little of them."""


class StartWatch:
    """`limit_s`: how long an instance may load without moving on. The clock runs from here."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._began_s = clock()
        self._moved: dict[str, tuple[int, float]] = {}

    def late(self, steps: Mapping[str, int]) -> set[str]:
        """Return those that load and have stood still for too long, by how far each is."""
        now_s = self._clock()
        for name, step in steps.items():
            before, _ = self._moved.get(name, (0, self._began_s))
            if step != before:
                self._moved[name] = (step, now_s)
        return {
            name for name in steps if now_s - self._moved.get(name, (0, self._began_s))[1] >= self._limit_s
        }


def busy_words(load: float, cores: int) -> str:
    """Say that others want the cores, where they want several times as many as there are; "" else."""
    if load < BUSY_LOAD * cores:
        return ""
    return f"This machine is busy: {load:.0f} programs want its {cores} cores. "
