"""The drills: real processes, real signals, a table each.

    python -m tests.chaos [NAME …]

Exit code 1 when a claim does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import sys
import tempfile
from pathlib import Path

from tests.chaos.report import DrillReport
from tests.chaos.world import Models

MOVES = ("nats", "regions", "roll", "scale", "versions")
DRILLS = ("cancel", "deadline", "crash", "overload", "fairness", "identity", *MOVES)


async def hold_drill(name: str, models: Models) -> DrillReport:
    drill = importlib.import_module(f"tests.chaos.drill_{name}")
    report: DrillReport = await drill.hold(models)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(DRILLS)} (default: all)")
    names = parser.parse_args().names or list(DRILLS)
    if unknown := set(names) - set(DRILLS):
        parser.error(f"there is no drill {', '.join(sorted(unknown))}")
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="penstock-drills-") as scratch:
        models = Models.under(Path(scratch))
        gc.collect()
        gc.freeze()  # to go through what the imports left takes half a second, which calls seem to take
        for name in names:
            report = asyncio.run(hold_drill(name, models))
            print(report, end="\n\n", flush=True)
            broken += report.broken()
        gc.unfreeze()  # or what ends with the interpreter says that it was leaked
    print(f"{len(broken)} claims do not hold" if broken else "every claim holds")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
