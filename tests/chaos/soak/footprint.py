"""What processes hold while nothing runs, and whether it grows over their lives."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.world import open_files

LEAST_LOOKS = 4
"""A life that was looked at less often says nothing."""
SHOWN_LIVES = 24


@dataclass(frozen=True, slots=True)
class Bound:
    """What a median may grow to: `times` what it was, and `more`."""

    times: float
    more: float

    def holds(self, before: float, after: float) -> bool:
        return after <= before * self.times + self.more


POOL_MB = 64.0
"""The KV pool of an engine, whose pages count once they were used."""
BOUNDS = {
    "resident MB": Bound(1.08, 8.0),
    "shared MB": Bound(1.0, POOL_MB),
    "open files": Bound(1.0, 8.0),
    "threads": Bound(1.0, 2.0),
    "tasks": Bound(1.0, 8.0),
}
"""Caches and the allocator have their size after a quarter of a life, but for a little."""
NATS_SERVER = "nats-server"
BOUNDS_OF_SERVERS = {**BOUNDS, "resident MB": Bound(1.0, 32.0), "open files": Bound(1.0, 24.0)}
"""Clients of a nats-server that is killed come to another one, each with its buffers."""
Footprint = dict[str, float]


def footprint_of(pid: int, tasks: float | None = None) -> Footprint:
    """`tasks` are those of its event loop, where it has told. Raises OSError where it has ended."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    held = {
        "resident MB": int(status["RssAnon"].split()[0]) / 1024,
        "shared MB": int(status["RssShmem"].split()[0]) / 1024,
        "open files": float(open_files(pid)),
        "threads": float(status["Threads"]),
    }
    return held if tasks is None else {**held, "tasks": tasks}


class Footprints:
    """What each process held whenever it was looked at, by name and process id."""

    def __init__(self) -> None:
        self._lives: dict[tuple[str, int], list[Footprint]] = defaultdict(list)

    def add(self, name: str, pid: int, held: Footprint) -> None:
        self._lives[name, pid].append(held)

    def judged(self) -> Iterator[tuple[str, int, str, float, float, bool]]:
        """Yield name, looks, what, its median in the second and the last quarter of a life, and whether that
        is flat."""
        for (name, _), looks in sorted(self._lives.items()):
            if len(looks) < LEAST_LOOKS:
                continue
            bounds = BOUNDS_OF_SERVERS if name.startswith(NATS_SERVER) else BOUNDS
            for what, bound in bounds.items():
                values = [look[what] for look in looks if what in look]
                if values:
                    before, after = quarters(values)
                    yield name, len(looks), what, before, after, bound.holds(before, after)


def quarters(values: Sequence[float]) -> tuple[float, float]:
    """Return the medians of the second and of the last quarter."""
    quarter = len(values) / 4
    second = values[round(quarter) : max(round(quarter) + 1, round(2 * quarter))]
    return statistics.median(second), statistics.median(values[min(round(3 * quarter), len(values) - 1) :])


def shared_memory() -> set[str]:
    """What lies in /dev/shm."""
    return {path.name for path in Path("/dev/shm").iterdir()}
