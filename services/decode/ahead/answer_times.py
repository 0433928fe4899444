"""Measure how long answers of speculators are on their way, and so how long one may take. Pure."""

from __future__ import annotations

MEMORY = 0.8
"""Weight of the past in the time on the way: about five answers."""
USED_SHARE = 0.9
"""The part of a step that answers may take, their way included: steps are not all alike."""


class AnswerTimes:
    """The time between a commit and its answer that the speculator itself did not take, by speculator."""

    def __init__(self) -> None:
        self._way_s: dict[str, float] = {}

    def observe(self, speculator: str, answered_s: float, took_us: int) -> None:
        """An answer came `answered_s` after its commit, of which the speculator says that it took
        `took_us`."""
        way_s = max(0.0, answered_s - took_us / 1e6)
        before_s = self._way_s.get(speculator, way_s)
        self._way_s[speculator] = MEMORY * before_s + (1 - MEMORY) * way_s

    def within_us(self, speculator: str, step_us: int) -> int:
        """Return how long it may take for what is to be there at the end of a step of `step_us`; 0 or less
        where it has no chance."""
        return round(USED_SHARE * step_us - 1e6 * self._way_s.get(speculator, 0.0))

    def forget(self, speculator: str) -> None:
        """It is gone."""
        self._way_s.pop(speculator, None)
