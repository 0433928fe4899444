"""The memory of the prefill worker's KV pool, shared with decode workers of this host if possible."""

from __future__ import annotations

import mmap

import structlog

from shared.errors import Unavailable
from shared.kv.memory.shared_pool import SharedPool

log = structlog.get_logger()


class PoolBuffer:
    """Made once and used again by each engine of this process, because decode workers have it mapped."""

    def __init__(self) -> None:
        self.shared: SharedPool | None = None
        self._memory: memoryview | None = None

    def __call__(self, nbytes: int) -> memoryview:
        if self._memory is None:
            try:
                self.shared = SharedPool.create(nbytes)
                self._memory = self.shared.memory
            except Unavailable as error:
                log.info("kv_pool_is_not_shared", reason=error.message)
                self._memory = memoryview(mmap.mmap(-1, nbytes))
        return self._memory

    def close(self) -> None:
        if self.shared is not None:
            self.shared.close()
