"""Count what a server on this machine costs while it is measured: CPU time and memory of its processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from shared.tasks import cancel_until_done

SAMPLE_S = 1.0
"""Memory is looked at so often, and processes that began meanwhile are found."""
SCHED_CLOCK = 2
"""The part of a process's clock number, as clock_getcpuclockid(3) makes it, that says: by the scheduler."""
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ServerUse:
    """`cpu_s`: of all its processes. `peak_bytes`: of their memory together, shared pages counted once (PSS);
    0 where the system does not say."""

    cpu_s: float
    peak_bytes: int
    processes: int


class ServerWatch:
    """Watches processes and all that descend from them."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._began_cpu_s: dict[int, float] = {}
        self._cpu_s: dict[int, float] = {}
        self._peak_bytes = 0

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Count from here on, until the end of the block."""
        self._sample()
        self._began_cpu_s = dict(self._cpu_s)
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            await cancel_until_done(task)
            self._sample()

    def use(self) -> ServerUse:
        """Return what was spent; of a process that began and ended between two samples nothing is known."""
        spent_s = (cpu_s - self._began_cpu_s.get(pid, 0.0) for pid, cpu_s in self._cpu_s.items())
        return ServerUse(sum(spent_s), self._peak_bytes, len(self._cpu_s))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            self._sample()

    def _sample(self) -> None:
        memory_bytes = 0
        for pid in descendants(self._pids):
            try:
                self._cpu_s[pid] = process_cpu_s(pid)
            except OSError:  # it has just ended
                continue
            memory_bytes += _memory_bytes(pid)
        self._peak_bytes = max(self._peak_bytes, memory_bytes)


def process_cpu_s(pid: int) -> float:
    """Return what all threads that a process has and had have run, to the nanosecond. Raises OSError for one
    that has ended."""
    return time.clock_gettime(~pid << 3 | SCHED_CLOCK)


def descendants(pids: Sequence[int]) -> set[int]:
    """Return the processes themselves with their children, and those of them; who has ended has none."""
    found: set[int] = set()
    left = list(pids)
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children_of(pid)
    return found


def children_of(pid: int) -> list[int]:
    """Return the processes that this one has started and that have not ended; who has ended has none."""
    try:
        lists = [(task / "children").read_text() for task in (PROC / str(pid) / "task").iterdir()]
    except OSError:
        return []
    return [int(child) for each in lists for child in each.split()]


def _memory_bytes(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended, or is another user's
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
