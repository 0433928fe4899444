"""Play worlds by their seeds: `python -m tests.simulation.swarm --minutes 5`, or `--seed 17` for one of them.

A seed that breaks a property is played again with ever less in it, and told. Ends with 1 where there is one.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

import structlog

from tests.simulation.swarm.draw import draw_plan
from tests.simulation.swarm.place import Place
from tests.simulation.swarm.play import Played, Undisturbed, play
from tests.simulation.swarm.seeds import SAME_TRACE, Tally, play_seeds
from tests.simulation.swarm.shrink import shrink
from tests.simulation.swarm.story import tell
from tests.simulation.swarm.undisturbed import right_answers

SHRINK_S = 90.0
"""The longest that a seed is made smaller."""
MOST_TOLD = 5
"""So many seeds that break a property are told whole; of the others, which property it was."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.swarm", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one alone, and tell it whatever comes of it")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, help="so many; else as many as there is time for")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--whole", action="store_true", help="make no seed smaller")
    parser.add_argument("--undisturbed", type=Path, help="file of the right answers; made if absent")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory(prefix="penstock-swarm-") as folder:
        place = Place.make(Path(folder))
        undisturbed = right_answers(place, given.undisturbed)
        if given.seed is not None:
            return _replay(given.seed, place, undisturbed)
        seeds = itertools.count(given.first)
        if given.seeds is not None:
            seeds = itertools.islice(seeds, given.seeds)  # type: ignore[assignment]
        return _go_through(given, seeds, place, undisturbed)


def _replay(seed: int, place: Place, undisturbed: Undisturbed) -> int:
    played = play(draw_plan(seed), place, undisturbed)
    print(tell(played))
    return bool(played.broken)


def _go_through(
    given: argparse.Namespace, seeds: itertools.count[int], place: Place, undisturbed: Undisturbed
) -> int:
    began_s, tally, broken = time.monotonic(), Tally(), list[Played]()
    stop_s = began_s + 60 * given.minutes
    for end in play_seeds(seeds, place, undisturbed, processes=given.processes, stop_s=stop_s):
        tally.add(end)
        if end.played is not None:
            print(f"seed {end.seed} breaks {'; '.join(sorted(end.played.rules))}", flush=True)
            broken.append(end.played)
    took_s = time.monotonic() - began_s
    for played in broken[:MOST_TOLD]:
        print(f"\n{tell(played if given.whole else _made_small(played, place, undisturbed))}", flush=True)
    ends = ", ".join(f"{count} {word}" for word, count in tally.outcomes.most_common())
    print(f"\n{tally.seeds} seeds in {took_s:.0f} s, with {tally.faults} faults; calls: {ends}")
    print(
        f"{3600 * tally.seeds / took_s:.0f} seeds an hour on {given.processes} cores as they were, "
        f"{3600 * tally.seeds / tally.cpu_s:.0f} an hour of one core's time; {len(broken)} broke a property"
    )
    return bool(broken)


def _made_small(played: Played, place: Place, undisturbed: Undisturbed) -> Played:
    if SAME_TRACE in played.rules:
        return played
    stop_s = time.monotonic() + SHRINK_S
    return shrink(played, lambda plan: play(plan, place, undisturbed), lambda: time.monotonic() < stop_s)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # what transformers imports complains at length about the end of its process
