"""Keep the KV of sequences that gave way: host memory first, then disk."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from shared.engine.engine_config import EngineConfig
from shared.engine.memory.disk_tier import LEAST_TIMED_BYTES, DiskTier, smooth_rate
from shared.errors import InternalError

MEMORY_BYTES_PER_US = 2000.0
"""The rate at which memory is believed to copy in one direction until a copy was measured."""


@dataclass(frozen=True, slots=True)
class OffloadStats:
    """Bytes held now; sequences saved, brought back, and lost to a full or failing disk so far."""

    memory_bytes: int
    disk_bytes: int
    saved: int
    restored: int
    failed: int


class OffloadStore:
    """KV by sequence key, each entry whole in one tier. Nothing is kept beyond `close`.

    What was lost is counted and reported as absent: the sequence is then computed again.
    """

    def __init__(self, memory_bytes: int, folder: str = "", disk_bytes: int = 0) -> None:
        """Raises InvalidRequest when `folder` is not a directory in which files can be made."""
        self._memory_budget = memory_bytes
        self._in_memory: dict[str, Tensor] = {}
        self._memory_rate = MEMORY_BYTES_PER_US
        self._disk = DiskTier(folder, disk_bytes) if disk_bytes else None
        self._saved = self._restored = 0

    @classmethod
    def of(cls, config: EngineConfig) -> OffloadStore | None:
        """Make the store, None where the configuration allows no offload."""
        if not config.offload_memory_mb and not config.offload_disk_mb:
            return None
        return cls(config.offload_memory_mb << 20, config.offload_dir, config.offload_disk_mb << 20)

    @property
    def stats(self) -> OffloadStats:
        disk = self._disk
        failed = disk.failed if disk is not None else 0
        disk_bytes = disk.nbytes if disk is not None else 0
        return OffloadStats(self._memory_bytes, disk_bytes, self._saved, self._restored, failed)

    def cost_us(self, nbytes: int) -> float | None:
        """Return what saving and bringing back `nbytes` will take; None when no tier has room for them."""
        if self._memory_bytes + nbytes <= self._memory_budget:
            return 2 * nbytes / self._memory_rate
        return self._disk.cost_us(nbytes) if self._disk is not None else None

    def put(self, key: str, data: Tensor, copy_us: float) -> bool:
        """Keep `data` (contiguous uint8 on the CPU, no longer written to), which took `copy_us` to make.

        False when no tier has room. Nothing waits for the disk.
        """
        if self._memory_bytes + data.nbytes <= self._memory_budget:
            self._in_memory[key] = data
            if data.nbytes >= LEAST_TIMED_BYTES:
                self._memory_rate = smooth_rate(self._memory_rate, data.nbytes, copy_us)
        elif self._disk is None or not self._disk.put(key, data):
            return False
        self._saved += 1
        return True

    def landed(self, key: str) -> bool:
        """Return whether `take` has nothing to wait for; begins to read what it would wait for."""
        return self._disk is None or self._disk.landed(key)

    def take(self, key: str) -> Tensor | None:
        """Return what was put under `key`, which is forgotten; None when it was lost."""
        data = self._in_memory.pop(key, None)
        if data is None and self._disk is not None and key in self._disk.keys:
            data = self._disk.take(key)
        if data is not None:
            self._restored += 1
        return data

    def drop(self, key: str) -> None:
        self._in_memory.pop(key, None)
        if self._disk is not None:
            self._disk.drop(key)

    def check(self, keys: set[str]) -> None:
        """Raise InternalError unless exactly `keys` are kept, each once, within the budgets."""
        on_disk = self._disk.keys if self._disk is not None else []
        held = [*self._in_memory, *on_disk]
        if sorted(held) != sorted(keys):
            raise InternalError(f"KV of {sorted(held)} is offloaded, {sorted(keys)} is explained")
        fits_disk = self._disk is None or self._disk.within_budget
        if self._memory_bytes > self._memory_budget or not fits_disk:
            raise InternalError(f"offloaded KV is above its budgets: {self.stats}")

    def close(self) -> None:
        self._in_memory.clear()
        if self._disk is not None:
            self._disk.close()

    @property
    def _memory_bytes(self) -> int:
        return sum(data.nbytes for data in self._in_memory.values())
