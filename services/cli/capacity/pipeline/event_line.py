"""The next thing that happens: calls in the order of their times."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class EventLine:
    """The calls that are still to come; those of one moment come in the order in which they were put.

    Whoever is called may put others: that is how what is played goes on."""

    __slots__ = ("_events", "_order", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = 0

    def at(self, at_s: float, call: Callable[..., None], *given: object) -> None:
        """Have `call` come at a time, which is not before now."""
        heapq.heappush(self._events, (at_s, self._order, call, given))
        self._order += 1

    def play(self) -> None:
        """Go on until nothing is left to come."""
        events, pop = self._events, heapq.heappop
        while events:
            self.now_s, _, call, given = pop(events)
            call(*given)
