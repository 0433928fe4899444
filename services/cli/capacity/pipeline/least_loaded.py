"""The worker with the least load of many, found without looking at each."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Worker = TypeVar("Worker")


class LeastLoaded(Generic[Worker]):
    """Workers by their load; of equals that one first whose load has not changed for longest."""

    __slots__ = ("_heap", "_latest", "_load", "_order")

    def __init__(self, workers: Sequence[Worker], load: Callable[[Worker], float]) -> None:
        self._load = load
        self._heap: list[tuple[float, int, Worker]] = []
        self._latest: dict[Worker, int] = {}
        """The entry of each that counts; earlier ones are outdated."""
        self._order = 0
        for worker in workers:
            self.changed(worker)

    def changed(self, worker: Worker) -> None:
        """Note that its load is another one, or of another time."""
        self._order += 1
        self._latest[worker] = self._order
        heapq.heappush(self._heap, (self._load(worker), self._order, worker))

    def least(self, can: Callable[[Worker], bool] = lambda _: True) -> Worker | None:
        """Return the first that can; None: nobody can."""
        passed: list[tuple[float, int, Worker]] = []
        found = None
        while self._heap and found is None:
            entry = self._heap[0]
            if self._latest[entry[2]] != entry[1]:
                heapq.heappop(self._heap)
            elif can(entry[2]):
                found = entry[2]
            else:
                passed.append(heapq.heappop(self._heap))
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return found
