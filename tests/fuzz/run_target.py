"""One target in a process of its own, which an input may end.

`python -m tests.fuzz.run_target NAME SEED SECONDS FILE`

Each input stands in FILE before it is tried. It prints a line of JSON for each find, and one at its end.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.fuzz.finds import keep_find
from tests.fuzz.fleet import watched_by
from tests.fuzz.neighbour import Neighbour
from tests.fuzz.target import Fault
from tests.fuzz.targets import TARGETS
from tests.fuzz.trying import seeded, shrunk, try_input
from tests.support.stack import resident_mb

MAX_GROWN_MB = 256.0
"""The memory that the process may have at the end beside what it had after its first tries."""
WARM_TRIES = 100
MAX_KINDS = 20
"""A target that fails in more ways is repaired before it is tried further."""


def run_target(name: str, seed: int, seconds: float, current: Path) -> None:
    target = TARGETS[name]
    tries, kinds, warm_mb = 0, set[str](), 0.0
    neighbour = Neighbour()
    with watched_by(neighbour), target.opened() as run_one:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and len(kinds) < MAX_KINDS:
            data = target.make(seeded(name, seed, tries))
            current.write_bytes(data)
            find = try_input(run_one, data)
            tries += 1
            if tries == WARM_TRIES:
                warm_mb = resident_mb_here()
            if find is None or find.kind in kinds:
                continue
            kinds.add(find.kind)
            find = shrunk(run_one, find)
            path = keep_find(name, find.data)
            _say(
                find=str(path),
                size_bytes=len(find.data),
                kind=find.kind,
                report=find.report,
                number=tries - 1,
            )
    grown_mb = resident_mb_here() - warm_mb if warm_mb else 0.0
    if grown_mb > MAX_GROWN_MB:
        _say(
            find="",
            kind="memory",
            report=f"the process has {grown_mb:.0f} MB more than after {WARM_TRIES} tries",
        )
    if target.has_stack:
        _check(neighbour)
    _say(tries=tries, kinds=len(kinds), grown_mb=round(grown_mb))


def _check(neighbour: Neighbour) -> None:
    _say(ordinary_p99_ms=neighbour.ordinary.p99_ms, hostile_p99_ms=neighbour.hostile.p99_ms)
    try:
        neighbour.check()
    except Fault as fault:
        _say(find="", kind="neighbour", report=str(fault))


def resident_mb_here() -> float:
    return resident_mb(int(Path("/proc/self").resolve().name))


def _say(**told: object) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    run_target(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
