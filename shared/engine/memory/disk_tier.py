"""KV on disk, written and read back by a thread of its own: a step goes on meanwhile."""

from __future__ import annotations

import weakref
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import structlog
import torch
import xxhash
from torch import Tensor

from shared.errors import InvalidRequest
from shared.seams.clock import SYSTEM_CLOCK
from shared.seams.threads import THREADS

log = structlog.get_logger()

MAX_WRITING_BYTES = 64 << 20
"""The most that waits in memory to be written, unless it is one sequence alone. More is not taken."""
DISK_BYTES_PER_US = 300.0
"""The rate at which a disk is believed to copy in one direction until a copy was measured."""
LEAST_TIMED_BYTES = 1 << 16  # shorter copies measure the clock
_SLICE_BYTES = 1 << 20
_RATE_MEMORY = 0.7


class _Written(NamedTuple):
    file: FileIO
    checksum: int
    us: float


class _Read(NamedTuple):
    data: Tensor
    us: float


@dataclass(slots=True)
class _Entry:
    shape: torch.Size
    nbytes: int
    data: Tensor | None  # until it is written
    writing: Future[_Written]
    reading: Future[_Read] | None = None
    noted: bool = False  # how the writing ended


class DiskTier:
    """KV by key. Nothing is kept beyond `close`.

    Until all of an entry is written it is served from memory. Files have no name (O_TMPFILE): nobody sees
    half of one, and the kernel takes them back even when the process is killed. What cannot be written or
    read back unchanged is counted, and absent when it is taken.
    """

    def __init__(self, folder: str, budget_bytes: int) -> None:
        """Raises InvalidRequest when `folder` is not a directory in which files can be made."""
        self._folder = Path(folder)
        self._budget = budget_bytes
        self._entries: dict[str, _Entry] = {}
        self._rate = DISK_BYTES_PER_US
        self._failed = 0
        try:
            TemporaryFile(dir=self._folder).close()
        except OSError as error:
            raise InvalidRequest(
                f"offload_dir {folder!r} cannot hold files ({error.strerror}); "
                "make it a writable directory or leave it out"
            ) from error
        self._thread = THREADS.pool(1, "kv-offload")
        self._end = weakref.finalize(self, _end, self._entries, self._thread)

    @property
    def keys(self) -> list[str]:
        return list(self._entries)

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self._entries.values())

    @property
    def failed(self) -> int:
        self._record_writes()
        return self._failed

    @property
    def within_budget(self) -> bool:
        return self.nbytes <= self._budget

    def cost_us(self, nbytes: int) -> float | None:
        """Return what writing and reading `nbytes` will take; None when there is no room for them now."""
        self._record_writes()
        waiting = sum(entry.nbytes for entry in self._entries.values() if entry.data is not None)
        if self.nbytes + nbytes > self._budget or (waiting and waiting + nbytes > MAX_WRITING_BYTES):
            return None
        return 2 * nbytes / self._rate

    def put(self, key: str, data: Tensor) -> bool:
        """Keep `data` (contiguous uint8 on the CPU, no longer written to); False where there is no room."""
        if self.cost_us(data.nbytes) is None:
            return False
        writing = self._thread.submit(_write, self._folder, data)
        entry = _Entry(data.shape, data.nbytes, data, writing)
        writing.add_done_callback(lambda _: _forget_data(entry))
        self._entries[key] = entry
        return True

    def landed(self, key: str) -> bool:
        """Return whether `take` has nothing to wait for. Begins to read what lies on the disk alone."""
        entry = self._entries.get(key)
        if entry is None or entry.data is not None:
            return True
        self._record_writes()
        if _is_lost(entry):
            return True
        return self._read(entry).done()

    def take(self, key: str) -> Tensor | None:
        """Return what was put under `key`, which is forgotten; None when it was lost. Waits for the disk."""
        entry = self._entries[key]
        data = entry.data
        if data is not None:
            self.drop(key)
            return data
        self._record_writes()
        del self._entries[key]
        if _is_lost(entry):
            return None
        try:
            read = self._read(entry).result()
        except (OSError, ValueError) as error:
            self._lose("could not be read back", error)
            return None
        self._measure(entry.nbytes, read.us)
        return read.data

    def drop(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            _discard(entry)

    def close(self) -> None:
        """Give everything up, and wait for what is written or read just now."""
        self._end()
        self._thread.shutdown()

    def _read(self, entry: _Entry) -> Future[_Read]:
        if entry.reading is None:
            entry.reading = self._thread.submit(_read, entry.writing.result(), entry.shape, entry.nbytes)
        return entry.reading

    def _record_writes(self) -> None:
        """Counts and measures those that have ended since."""
        for entry in self._entries.values():
            if entry.noted or not entry.writing.done():
                continue
            entry.noted = True
            error = entry.writing.exception()
            if error is None:
                self._measure(entry.nbytes, entry.writing.result().us)
            else:
                entry.nbytes = 0
                self._lose("could not be written", error)

    def _measure(self, nbytes: int, us: float) -> None:
        if nbytes >= LEAST_TIMED_BYTES:
            self._rate = smooth_rate(self._rate, nbytes, us)

    def _lose(self, what: str, error: BaseException) -> None:
        self._failed += 1
        log.warning("kv_offload_failed", reason=what, folder=str(self._folder), error=str(error))


def smooth_rate(rate: float, nbytes: int, us: float) -> float:
    return _RATE_MEMORY * rate + (1 - _RATE_MEMORY) * nbytes / max(us, 1.0)


# --- in the thread ---


def _write(folder: Path, data: Tensor) -> _Written:
    began_ns = SYSTEM_CLOCK.monotonic_ns()
    content = data.reshape(-1).numpy().data
    hasher = xxhash.xxh3_64()
    file: FileIO = TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115 (closed with its entry)
    try:
        for part in _slices(content):  # so that nobody waits long for the interpreter
            hasher.update(part)
            written = 0
            while written < len(part):
                written += file.write(part[written:])
    except BaseException:
        file.close()
        raise
    return _Written(file, hasher.intdigest(), (SYSTEM_CLOCK.monotonic_ns() - began_ns) / 1000)


def _read(written: _Written, shape: torch.Size, nbytes: int) -> _Read:
    """Raises OSError, or ValueError for what is not what was written."""
    began_ns = SYSTEM_CLOCK.monotonic_ns()
    data = torch.empty(nbytes, dtype=torch.uint8)
    hasher = xxhash.xxh3_64()
    with written.file as file:
        file.seek(0)
        for part in _slices(data.numpy().data):
            filled = 0
            while filled < len(part) and (count := file.readinto(part[filled:])):
                filled += count
            hasher.update(part[:filled])
    if hasher.intdigest() != written.checksum:
        raise ValueError("it came back changed")
    return _Read(data.view(shape), (SYSTEM_CLOCK.monotonic_ns() - began_ns) / 1000)


def _slices(content: memoryview) -> list[memoryview]:
    return [content[start : start + _SLICE_BYTES] for start in range(0, len(content), _SLICE_BYTES)]


# --- entries that end ---


def _is_lost(entry: _Entry) -> bool:
    return entry.writing.exception() is not None


def _forget_data(entry: _Entry) -> None:
    entry.data = None


def _discard(entry: _Entry) -> None:
    """Its file is closed as soon as nobody works on it."""
    if entry.reading is None:
        if not entry.writing.cancel():
            entry.writing.add_done_callback(_close_file)
    elif entry.reading.cancel():
        _close_file(entry.writing)


def _close_file(writing: Future[_Written]) -> None:
    if writing.exception() is None:
        writing.result().file.close()


def _end(entries: dict[str, _Entry], thread: Executor) -> None:
    """Close the files that nobody works on, and let the thread end when it has done what it was given.

    It does not wait: the garbage collector calls it in any thread, perhaps one that begins or ends just now
    and has the lock that joining another would want.
    """
    for entry in entries.values():
        _discard(entry)
    entries.clear()
    thread.shutdown(wait=False)
