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
from tests.simulation.mutants.swapped import planted
from tests.simulation.swarm.draw import draw_plan
from tests.simulation.swarm.place import Place
from tests.simulation.swarm.play import Undisturbed, play
from tests.simulation.swarm.undisturbed import right_answers


@dataclass(frozen=True, slots=True)
class Search:
    """`found`: by which seed and property, "" where none did."""

    mutant: str
    found: str
    seeds: int
    cpu_s: float


def search(mutant: Mutant, place: Place, undisturbed: Undisturbed, seconds: float, first: int) -> Search:
    """Play seeds with the fault until one breaks a property that it keeps without; give up after so much time
    of a core."""
    for seed in itertools.count(first):
        plan = draw_plan(seed)
        with planted(mutant):
            rules = play(plan, place, undisturbed).rules
        anyhow = play(plan, place, undisturbed).rules if rules else set()
        if anyhow:
            print(f"seed {seed} breaks {', '.join(sorted(anyhow))} without any planted fault", flush=True)
        rules -= anyhow
        if rules:
            return Search(mutant.name, f"seed {seed}: {min(rules)}", seed - first + 1, time.process_time())
        if time.process_time() > seconds:
            return Search(mutant.name, "", seed - first + 1, time.process_time())
    raise AssertionError("there is always another seed")


def search_all(
    mutants: list[Mutant],
    place: Place,
    undisturbed: Undisturbed,
    *,
    seconds: float,
    first: int,
    processes: int,
) -> Iterator[Search]:
    """Yield how each search went; a process has one fault, as it began without any."""
    look = partial(search, place=place, undisturbed=undisturbed, seconds=seconds, first=first)
    with get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(look, mutants, chunksize=1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of a core's time for each, at most")
    parser.add_argument("--least", type=float, default=0.0, help="share that has to be found")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first seed")
    parser.add_argument(
        "--only", nargs="*", default=[""], help="those alone that have one of these in their names"
    )
    parser.add_argument("--undisturbed", type=Path, help="file of the right answers; made if absent")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    mutants = [mutant for mutant in MUTANTS if any(word in mutant.name for word in given.only)]
    found = seeds = 0
    spent_s = 0.0
    with tempfile.TemporaryDirectory(prefix="penstock-mutants-") as folder:
        place = Place.make(Path(folder))
        undisturbed = right_answers(place, given.undisturbed)
        looks = search_all(
            mutants,
            place,
            undisturbed,
            seconds=given.seconds,
            first=given.first,
            processes=given.processes,
        )
        for one in looks:
            found += bool(one.found)
            seeds += one.seeds
            spent_s += one.cpu_s
            how = one.found or f"not found by {one.seeds} seeds"
            print(f"{one.mutant:62} {one.cpu_s:5.0f} s  {how}", flush=True)
    print(f"{found} of {len(mutants)} found by {seeds} seeds, of {spent_s / seeds:.2f} s of a core each")
    return int(found < given.least * len(mutants))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # what transformers imports complains at length about the end of its process
