"""Where the KV of preempted sequences waits: host memory first, then disk."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from tempfile import TemporaryFile

import structlog
import torch
import xxhash
from torch import Tensor

from shared.engine.engine_config import EngineConfig
from shared.errors import InternalError, InvalidRequest

log = structlog.get_logger()

MEMORY_BYTES_PER_US = 2000.0
DISK_BYTES_PER_US = 300.0
"""What the tiers are believed to copy in one direction until a copy was measured."""
_RATE_MEMORY = 0.7
_LEAST_TIMED_BYTES = 1 << 16  # shorter copies measure the clock


@dataclass(frozen=True, slots=True)
class OffloadStats:
    """Bytes held now; sequences saved, brought back, and lost to a full or failing disk so far."""

    memory_bytes: int
    disk_bytes: int
    saved: int
    restored: int
    failed: int


@dataclass(frozen=True, slots=True)
class _DiskEntry:
    file: FileIO
    shape: torch.Size
    nbytes: int
    checksum: int


class OffloadStore:
    """KV by sequence key, each entry whole in one tier. Nothing is kept beyond `close`.

    Files have no name (O_TMPFILE): nobody sees half of one, and the kernel takes them back even when the
    process is killed. What cannot be written or read back unchanged is counted and reported as absent: the
    sequence is then computed again.
    """

    def __init__(self, memory_bytes: int, folder: str = "", disk_bytes: int = 0) -> None:
        """Raises InvalidRequest when `folder` is not a directory in which files can be made."""
        self._memory_budget = memory_bytes
        self._disk_budget = disk_bytes
        self._folder = Path(folder) if disk_bytes else None
        self._in_memory: dict[str, Tensor] = {}
        self._on_disk: dict[str, _DiskEntry] = {}
        self._memory_rate = MEMORY_BYTES_PER_US
        self._disk_rate = DISK_BYTES_PER_US
        self._saved = self._restored = self._failed = 0
        if self._folder is not None:
            try:
                TemporaryFile(dir=self._folder).close()
            except OSError as error:
                raise InvalidRequest(
                    f"offload_dir {folder!r} cannot hold files ({error.strerror}); "
                    "make it a writable directory or leave it out"
                ) from error
        self._close_files = weakref.finalize(self, _close_all, self._on_disk)

    @classmethod
    def of(cls, config: EngineConfig) -> OffloadStore | None:
        """None where the configuration allows no offload."""
        if not config.offload_memory_mb and not config.offload_disk_mb:
            return None
        return cls(config.offload_memory_mb << 20, config.offload_dir, config.offload_disk_mb << 20)

    @property
    def stats(self) -> OffloadStats:
        memory = sum(data.nbytes for data in self._in_memory.values())
        disk = sum(entry.nbytes for entry in self._on_disk.values())
        return OffloadStats(memory, disk, self._saved, self._restored, self._failed)

    def cost_us(self, nbytes: int) -> float | None:
        """What saving and bringing back `nbytes` will take; None when no tier has room for them."""
        stats = self.stats
        if stats.memory_bytes + nbytes <= self._memory_budget:
            return 2 * nbytes / self._memory_rate
        if stats.disk_bytes + nbytes <= self._disk_budget:
            return 2 * nbytes / self._disk_rate
        return None

    def put(self, key: str, data: Tensor, copy_us: float) -> bool:
        """Keep `data` (contiguous uint8 on the CPU, no longer written to), which took `copy_us` to make.

        False when no tier has room or the disk failed.
        """
        stats = self.stats
        if stats.memory_bytes + data.nbytes <= self._memory_budget:
            self._in_memory[key] = data
            if data.nbytes >= _LEAST_TIMED_BYTES:
                self._memory_rate = _smooth(self._memory_rate, data.nbytes, copy_us)
        elif stats.disk_bytes + data.nbytes <= self._disk_budget:
            entry = self._write(data)
            if entry is None:
                return False
            self._on_disk[key] = entry
        else:
            return False
        self._saved += 1
        return True

    def take(self, key: str) -> Tensor | None:
        """What was put under `key`, which is forgotten; None when it was lost."""
        data = self._in_memory.pop(key, None)
        if data is None and key in self._on_disk:
            data = self._read(self._on_disk.pop(key))
        if data is not None:
            self._restored += 1
        return data

    def drop(self, key: str) -> None:
        self._in_memory.pop(key, None)
        entry = self._on_disk.pop(key, None)
        if entry is not None:
            entry.file.close()

    def check(self, keys: set[str]) -> None:
        """Raise InternalError unless exactly `keys` are kept, each once, within the budgets."""
        held = [*self._in_memory, *self._on_disk]
        if sorted(held) != sorted(keys):
            raise InternalError(f"KV of {sorted(held)} is offloaded, {sorted(keys)} is explained")
        stats = self.stats
        if stats.memory_bytes > self._memory_budget or stats.disk_bytes > self._disk_budget:
            raise InternalError(f"offloaded KV is above its budgets: {stats}")

    def close(self) -> None:
        self._in_memory.clear()
        self._close_files()

    def _write(self, data: Tensor) -> _DiskEntry | None:
        began_ns = time.perf_counter_ns()
        content = data.reshape(-1).numpy().data
        file: FileIO | None = None
        try:
            file = TemporaryFile(buffering=0, dir=self._folder)  # noqa: SIM115 (closed with its entry)
            written = 0
            while written < len(content):
                written += file.write(content[written:])
        except OSError as error:
            if file is not None:
                file.close()
            self._lose("could not be written", error)
            return None
        if len(content) >= _LEAST_TIMED_BYTES:
            us = (time.perf_counter_ns() - began_ns) / 1000
            self._disk_rate = _smooth(self._disk_rate, len(content), us)
        return _DiskEntry(file, data.shape, len(content), xxhash.xxh3_64_intdigest(content))

    def _read(self, entry: _DiskEntry) -> Tensor | None:
        data = torch.empty(entry.nbytes, dtype=torch.uint8)
        content = data.numpy().data
        began_ns = time.perf_counter_ns()
        try:
            with entry.file as file:
                file.seek(0)
                filled = 0
                while filled < entry.nbytes and (count := file.readinto(content[filled:])):
                    filled += count
        except OSError as error:
            self._lose("could not be read", error)
            return None
        if filled < entry.nbytes or xxhash.xxh3_64_intdigest(content) != entry.checksum:
            self._lose("came back changed", None)
            return None
        if entry.nbytes >= _LEAST_TIMED_BYTES:
            us = (time.perf_counter_ns() - began_ns) / 1000
            self._disk_rate = _smooth(self._disk_rate, entry.nbytes, us)
        return data.view(entry.shape)

    def _lose(self, what: str, error: OSError | None) -> None:
        self._failed += 1
        log.warning("kv_offload_failed", reason=what, folder=str(self._folder), error=str(error or ""))


def _smooth(rate: float, nbytes: int, us: float) -> float:
    return _RATE_MEMORY * rate + (1 - _RATE_MEMORY) * nbytes / max(us, 1.0)


def _close_all(entries: dict[str, _DiskEntry]) -> None:
    for entry in entries.values():
        entry.file.close()
    entries.clear()
