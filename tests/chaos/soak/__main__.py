"""Hold a soak and tell what came of it: `make soak MINUTES=30 SEED=1`.

Ends with 1 where something broke. The same seed lets the same things happen again, as far as real processes
let it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
from pathlib import Path

from tests.chaos.soak.soak import hold
from tests.chaos.world import Models


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, help="file for what the stack says (default: one in /tmp)")
    given = parser.parse_args()
    log = given.log or Path(tempfile.gettempdir()) / f"penstock-soak-{given.seed}.log"
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as scratch:
        models = Models.under(Path(scratch))
        gc.collect()
        gc.freeze()
        report = asyncio.run(hold(models, given.seed, given.minutes, log))
        gc.unfreeze()
    print(report, end="\n\n", flush=True)
    broken = report.broken()
    if broken:
        print(f"{len(broken)} claims do not hold; what the stack said is in {log}")
        print(f"again: make soak SEED={given.seed} MINUTES={given.minutes:g}")
    else:
        print("every claim holds")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
