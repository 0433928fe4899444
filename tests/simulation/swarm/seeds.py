"""Play seeds one after another, on several cores, each a process that has imported all before."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

from tests.simulation.swarm.draw import draw_plan
from tests.simulation.swarm.place import Place
from tests.simulation.swarm.play import Played, Undisturbed, play
from tests.simulation.swarm.record import Broken

TWICE_EVERY = 20
"""One in so many seeds is played twice: both runs have to have one trace."""

SAME_TRACE = "one seed, one trace"


@dataclass(frozen=True)
class SeedEnd:
    """What came of one seed. `played` is kept where a property was broken."""

    seed: int
    outcomes: Counter[str]
    faults: int
    cpu_s: float
    played: Played | None


@dataclass
class Tally:
    """What all seeds came to."""

    seeds: int = 0
    faults: int = 0
    cpu_s: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, end: SeedEnd) -> None:
        self.seeds += 1
        self.faults += end.faults
        self.cpu_s += end.cpu_s
        self.outcomes += end.outcomes


def play_seed(seed: int, place: Place, undisturbed: Undisturbed) -> SeedEnd:
    began_s = time.process_time()
    plan = draw_plan(seed)
    played = play(plan, place, undisturbed)
    if seed % TWICE_EVERY == 0:
        again = play(plan, place, undisturbed)
        if again.digest != played.digest:
            played.broken.append(Broken(SAME_TRACE, difference(played, again)))
    cpu_s = time.process_time() - began_s
    return SeedEnd(seed, played.outcomes, len(plan.faults), cpu_s, played if played.broken else None)


def difference(one: Played, other: Played) -> str:
    """Say where two runs part, as far as their events show it."""
    pairs = zip(one.events, other.events, strict=False)
    first = next((f"{mine} | {theirs}" for mine, theirs in pairs if mine != theirs), "no event differs")
    return f"{one.digest} and {other.digest}: {first}"


def play_seeds(
    seeds: Iterator[int], place: Place, undisturbed: Undisturbed, *, processes: int, stop_s: float
) -> Iterator[SeedEnd]:
    """Yield what comes of each, as it comes; begin no other one after `stop_s` of the monotonic clock."""
    context = multiprocessing.get_context("fork")
    workers: dict[Connection, ForkProcess] = {}
    for _ in range(processes):
        ours, theirs = context.Pipe()
        worker = context.Process(target=_serve, args=(theirs, place, undisturbed), daemon=True)
        worker.start()
        theirs.close()
        workers[ours] = worker
    playing: dict[Connection, int] = {}
    idle = list(workers)
    try:
        while True:
            while idle and time.monotonic() < stop_s and (seed := next(seeds, None)) is not None:
                playing[idle[-1]] = seed
                idle.pop().send(seed)
            if not playing:
                return
            for told in wait(list(playing)):
                assert isinstance(told, Connection)
                playing.pop(told)
                idle.append(told)
                yield told.recv()
    finally:
        for ours, worker in workers.items():
            ours.close()
            worker.terminate()
            worker.join()


def _serve(seeds: Connection, place: Place, undisturbed: Undisturbed) -> None:
    while True:
        try:
            seed = seeds.recv()
        except EOFError:
            return
        seeds.send(play_seed(seed, place, undisturbed))
