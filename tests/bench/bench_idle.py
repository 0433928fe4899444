"""Measure what a stack costs while nobody asks for anything: CPU time, wake-ups and memory by process.

    python -m tests.bench.bench_idle [--seconds S] [--rest-s S] [--against DIR] [-- options of `penstock up`]

A stack of nine processes with the small models that ship, its launcher and nats-server among them. With
`--against` a stack of that tree of the code runs beside it and is measured in the same seconds, so that what
else the machine does disturbs both alike. CPU is what the scheduler gave all threads, to the nanosecond; a
wake-up is a thread that had waited and runs again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from services.cli.bench.run.server_watch import descendants, process_cpu_s
from tests.support.data import REPOSITORY
from tests.support.stack import Stack

REST_S, IDLE_S = 20.0, 60.0
"""The time until a stack rests, and the time for which it is then looked at."""
MEMORY_FIELDS = ("Pss", "Pss_Anon")


@dataclass(frozen=True, slots=True)
class Reading:
    """Hold what a process has cost so far, and what it has: memory that several share counts once for all."""

    name: str
    cpu_s: float
    wake_ups: int
    pss_mb: float
    anonymous_mb: float


def wake_ups_of(pid: int) -> int:
    """Return how often threads that it has now have waited."""
    words = "voluntary_ctxt_switches:"
    lines = [
        line
        for task in Path(f"/proc/{pid}/task").iterdir()
        for line in (task / "status").read_text().splitlines()
        if line.startswith(words)
    ]
    return sum(int(line.removeprefix(words)) for line in lines)


def memory_mb(pid: int) -> tuple[float, ...]:
    """Return its share of all memory, and of that what no file stands behind."""
    lines = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    kilobytes = {line[0].rstrip(":"): int(line[1]) for line in lines if line[0].startswith("Pss")}
    return tuple(kilobytes[field] / 1024 for field in MEMORY_FIELDS)


def processes_of(stack: Stack) -> dict[int, str]:
    """Return the processes of a stack, by what they are to it."""
    services = {instance.pid: instance.id for instance in stack.instances()}
    launcher = stack.process.pid
    others = {launcher: "launcher"}
    for pid in descendants([launcher]) - {launcher, *services}:
        program = Path(f"/proc/{pid}/comm").read_text().strip()
        others[pid] = program if program == "nats-server" else f"fork server ({program})"
    return others | services


def readings_of(processes: dict[int, str]) -> dict[int, Reading]:
    return {
        pid: Reading(name, process_cpu_s(pid), wake_ups_of(pid), *memory_mb(pid))
        for pid, name in processes.items()
    }


def table(
    before: dict[int, Reading], after: dict[int, Reading], seconds: float
) -> dict[str, dict[str, float]]:
    """Return a row for each process, and one of all together."""
    rows = {
        now.name: {
            "cpu_percent": 100 * (now.cpu_s - before[pid].cpu_s) / seconds,
            "wake_ups_per_s": (now.wake_ups - before[pid].wake_ups) / seconds,
            "pss_mb": now.pss_mb,
            "anonymous_mb": now.anonymous_mb,
        }
        for pid, now in after.items()
    }
    columns = next(iter(rows.values()))
    return rows | {"all": {column: sum(row[column] for row in rows.values()) for column in columns}}


def shown(title: str, rows: dict[str, dict[str, float]]) -> str:
    lines = [f"{title}\n{'':<24} {'% of a core':>12} {'wake-ups/s':>12} {'PSS MB':>9} {'anonymous':>10}"]
    lines += [
        f"{name:<24} {row['cpu_percent']:12.3f} {row['wake_ups_per_s']:12.1f} {row['pss_mb']:9.1f} "
        f"{row['anonymous_mb']:10.1f}"
        for name, row in rows.items()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=IDLE_S)
    parser.add_argument("--rest-s", type=float, default=REST_S, help="how long a stack comes to rest")
    parser.add_argument("--against", type=Path, help="another tree of the code, measured beside this one")
    parser.add_argument("--json", default="", help="also write the tables there")
    parser.add_argument("up", nargs="*", help="options of `penstock up`, behind --")
    options = parser.parse_args()
    roots = [REPOSITORY, *([options.against] if options.against else [])]
    with ExitStack() as open_stacks:
        stacks = [open_stacks.enter_context(Stack(*options.up, root=root)) for root in roots]
        time.sleep(options.rest_s)
        processes = [processes_of(stack) for stack in stacks]
        before, began_s = [readings_of(each) for each in processes], time.monotonic()
        time.sleep(options.seconds)
        after, took_s = [readings_of(each) for each in processes], time.monotonic() - began_s
    tables = {str(root): table(was, now, took_s) for root, was, now in zip(roots, before, after, strict=True)}
    print("\n\n".join(shown(root, rows) for root, rows in tables.items()))
    print(f"\nload {os.getloadavg()[0]:.1f}")
    if options.json:
        Path(options.json).write_text(json.dumps(tables, indent=2))


if __name__ == "__main__":
    main()
