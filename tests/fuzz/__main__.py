"""Go through the targets for some minutes: `python -m tests.fuzz --minutes 5 --seed 1 --target gguf`.

Each is tried in a process of its own, so that an input that ends or hangs one is a find like any other. Ends
with 1 where there is one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.fuzz.finds import keep_find
from tests.fuzz.targets import TARGETS

GRACE_S = 150.0
"""The time beyond its share that a target may take: to start a fleet, and to make a find small."""


def fuzz_target(name: str, seed: int, seconds: float) -> int:
    """Print what came of it, and return the number of finds."""
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as folder:
        current = Path(folder) / "input"
        command = [sys.executable, "-m", "tests.fuzz.run_target", name, str(seed), str(seconds), str(current)]
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, timeout=seconds + GRACE_S, check=False
            )
            output, ended = (
                done.stdout,
                "" if done.returncode == 0 else f"the process ended with {done.returncode}",
            )
        except subprocess.TimeoutExpired as error:
            output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
            ended = "the process did not come back"
        told: list[dict[str, Any]] = [
            json.loads(line) for line in output.splitlines() if line.startswith("{")
        ]
        finds = [each for each in told if "find" in each]
        if ended:
            path = keep_find(name, current.read_bytes()) if current.exists() else ""
            finds.append({"find": str(path), "kind": ended, "report": f"{ended} at this input"})
    tries = next((each["tries"] for each in told if "tries" in each), "some")
    print(f"{name:16} {tries:>8} tries, {len(finds)} finds{_beside(told)}", flush=True)
    for find in finds:
        print(f"  {find['kind']}\n  {find['find']}\n{find['report']}", flush=True)
    return len(finds)


def _beside(told: list[dict[str, Any]]) -> str:
    """Tell what a neighbour saw, where there was one."""
    for each in told:
        if "hostile_p99_ms" in each:
            beside, before = each["hostile_p99_ms"], each["ordinary_p99_ms"]
            return f", p99 of a neighbour's tokens {beside:.1f} ms, {before:.1f} beside ordinary calls"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=1, help="another one tries other inputs")
    parser.add_argument(
        "--target", action="append", choices=sorted(TARGETS), help="one of them; may be said again"
    )
    given = parser.parse_args()
    names = given.target or list(TARGETS)
    finds = sum([fuzz_target(name, given.seed, given.minutes * 60 / len(names)) for name in names])
    return 1 if finds else 0


if __name__ == "__main__":
    sys.exit(main())
