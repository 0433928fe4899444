"""Let the swarm look for each planted fault: `python -m tests.simulation.mutants --seconds 30`.

Says which ones it finds, by which seed and which property. Ends with 1 where it finds too few.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import structlog

from tests.simulation.mutants.mutant import Mutant
from tests.simulation.mutants.planted import MUTANTS
from tests.simulation.mutants.swapped import plant
from tests.simulation.swarm.draw import draw_plan
from tests.simulation.swarm.place import Place
from tests.simulation.swarm.play import Undisturbed, play
from tests.simulation.swarm.undisturbed import ask_undisturbed


@dataclass(frozen=True, slots=True)
class Search:
    """`found`: by which seed and property, "" where none did."""

    mutant: str
    found: str
    seeds: int
    cpu_s: float


def search(mutant: Mutant, place: Place, undisturbed: Undisturbed, seconds: float) -> Search:
    """Play seeds with the fault until a property breaks; give up after so much time of a core."""
    plant(mutant)
    for seed in itertools.count(1):
        played = play(draw_plan(seed), place, undisturbed)
        if played.broken:
            return Search(mutant.name, f"seed {seed}: {played.broken[0].rule}", seed, time.process_time())
        if time.process_time() > seconds:
            return Search(mutant.name, "", seed, time.process_time())
    raise AssertionError("there is always another seed")


def search_all(
    mutants: list[Mutant], place: Place, undisturbed: Undisturbed, *, seconds: float, processes: int
) -> Iterator[Search]:
    """Yield how each search went; a process has one fault, as it began without any."""
    look = partial(search, place=place, undisturbed=undisturbed, seconds=seconds)
    with get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(look, mutants, chunksize=1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of a core's time for each, at most")
    parser.add_argument("--least", type=float, default=0.0, help="share that has to be found")
    parser.add_argument("--only", default="", help="those alone that have this in their names")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    mutants = [mutant for mutant in MUTANTS if given.only in mutant.name]
    found = 0
    with tempfile.TemporaryDirectory(prefix="penstock-mutants-") as folder:
        place = Place.make(Path(folder))
        undisturbed = ask_undisturbed(place)
        for one in search_all(mutants, place, undisturbed, seconds=given.seconds, processes=given.processes):
            found += bool(one.found)
            how = one.found or f"not found by {one.seeds} seeds"
            print(f"{one.mutant:62} {one.cpu_s:5.0f} s  {how}", flush=True)
    print(f"{found} of {len(mutants)} found")
    return int(found < given.least * len(mutants))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # what transformers imports complains at length about the end of its process
