"""Give back the memory of KV blocks that nobody has used for a while."""

from __future__ import annotations

import math

import structlog

from shared.deadline import SYSTEM_CLOCK, Clock
from shared.engine.memory.block_pool import BlockPool
from shared.engine.memory.pool_pages import PoolPages

log = structlog.get_logger()

BLANK_IDLE_S = 30.0
"""The time after which blocks without content give their memory back, if cached ones do not sooner: they cost
no more than getting it again, 0.5 ms a MiB."""
MOST_CALLS = 512
"""Calls into the system at a time, of 7 µs each with the pages that one of a few cells has."""
MOST_BYTES = 32 << 20
"""Memory that is given back at a time, at 70 µs a MiB: whoever wants the engine meanwhile waits for that."""


class IdleMemory:
    """The idle blocks of a pool. Cached ones give their memory back `cached_idle_s` after they were used
    last, and are cached no more."""

    def __init__(
        self, blocks: BlockPool, pages: PoolPages, cached_idle_s: float, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._blocks = blocks
        self._pages = pages
        self._clock = clock
        self._cached_idle_s = cached_idle_s
        self._blank_idle_s = min(BLANK_IDLE_S, cached_idle_s)
        self._most_blocks = max(1, min(MOST_CALLS // pages.num_rows, MOST_BYTES // pages.block_bytes))
        self.refused = False
        """The system has refused to take any back."""

    def give_back(self) -> float:
        """Give back a part of what is due, and return after how many seconds there may be more: 0 at once,
        infinity where all that is used is held."""
        if self.refused:
            return math.inf
        now_s = self._clock.monotonic_s()
        retired = self._blocks.retire(
            now_s - self._blank_idle_s, now_s - self._cached_idle_s, self._most_blocks
        )
        try:
            self._pages.give_back(retired, self._blocks.is_unused)
        except OSError as error:
            self.refused = True
            log.warning("kv_memory_not_given_back", why=error.strerror or str(error))
            return math.inf
        return max(0.0, self._blocks.next_idle_s(self._blank_idle_s, self._cached_idle_s) - now_s)
