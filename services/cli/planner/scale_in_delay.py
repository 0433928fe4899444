"""Keep instances until none of them was needed for a time: to scale out waits for nothing."""

from __future__ import annotations

from collections import deque


class ScaleInDelay:
    """Remembers, of the last `after_s`, the counts that were needed and that no later one was above.

    They fall from the first to the last, so there are never more of them than instances.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._needed: deque[tuple[float, int]] = deque()

    def kept(self, now_s: float, needed: int, there: int) -> int:
        """Return how many there are to be, of `there` that are and `needed` that are enough."""
        while self._needed and self._needed[-1][1] <= needed:
            self._needed.pop()
        self._needed.append((now_s, needed))
        while self._needed[0][0] < now_s - self._after_s:
            self._needed.popleft()
        return needed if needed >= there else min(there, self._needed[0][1])
