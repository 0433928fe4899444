"""Keep the KV blocks that have no content, and know which of them take no memory."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict

from shared.deadline import Clock


class BlankBlocks:
    """The blank blocks of a pool: those that were used, and unused ones, whose memory is not resident.

    A block is taken of those that were used, the last one that came; else the first of the unused ones. So a
    small load stays in a small part of the pool. Every block is unused at first.
    """

    def __init__(self, num_blocks: int, clock: Clock) -> None:
        self._clock = clock
        self._used: OrderedDict[int, float] = OrderedDict()  # block -> since when it is blank, oldest first
        self._unused = list(range(num_blocks))  # a heap
        self.is_unused = bytearray(b"\1" * num_blocks)
        """1 for each block that takes no memory, else 0."""

    def __len__(self) -> int:
        return len(self._used) + len(self._unused)

    def __contains__(self, block: int) -> bool:
        return bool(self.is_unused[block]) or block in self._used

    @property
    def num_unused(self) -> int:
        return len(self._unused)

    def take(self) -> int:
        """Return a block that is going to be used, which is blank no more. There is one."""
        if self._used:
            return self._used.popitem()[0]
        block = heapq.heappop(self._unused)
        self.is_unused[block] = 0
        return block

    def add(self, block: int) -> None:
        """A block that was used has no content any more."""
        self._used[block] = self._clock.monotonic_s()

    def add_unused(self, block: int) -> None:
        """A block gives its memory back."""
        heapq.heappush(self._unused, block)
        self.is_unused[block] = 1

    def oldest_s(self) -> float:
        """Return since when the oldest of the used ones is blank; infinity: there is none."""
        return next(iter(self._used.values()), math.inf)

    def take_idle(self, since_s: float, most: int) -> list[int]:
        """Return at most so many used ones that are blank since `since_s` or longer, which are blank no
        more."""
        idle: list[int] = []
        while len(idle) < most and self.oldest_s() <= since_s:
            idle.append(self._used.popitem(last=False)[0])
        return idle
