"""The scenario of `test_fleet.py`: calls of a fleet whose nodes crash, hang and are cut off, if they are to.

Apart from its test, for a second process that runs it imports what it needs alone: no transformers.
"""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from random import Random

from tests.simulation.fleet import Fleet, fleet_of

WORKERS = ["tokenizer-0", "tokenizer-1", "detokenizer-0", "detokenizer-1", "prefill-0", "prefill-1"]
WORKERS += ["decode-0", "decode-1", "speculator-0"]
CALLS = 10
TOKENS = 30
FAULTS = 6
REST_S = 60.0
"""Longer than any lease: what is held after it is held for ever."""
LIMIT_S = 600.0


def prompt_of(number: int) -> list[int]:
    return [(number * 31 + at * 7) % 200 + 5 for at in range(20 + number * 5)]


async def break_things(fleet: Fleet, random: Random) -> None:
    for _ in range(FAULTS):
        await asyncio.sleep(random.expovariate(1 / 0.3))
        name = random.choice(WORKERS)
        match random.choice(("crash", "pause", "cut")):
            case "crash":
                fleet.crash(name)
                await asyncio.sleep(random.random())
                fleet.start(name)
            case "pause":
                fleet.world.nodes[name].pause()
                await asyncio.sleep(random.expovariate(1 / 0.6))
                fleet.world.nodes[name].resume()
            case _:
                fleet.cut(name)


async def scenario(fleet: Fleet, *, broken: bool) -> list[list[int]]:
    random = Random(f"faults {fleet.world.seed}")
    await fleet.server.start()
    for name in WORKERS:
        fleet.start(name, skew_s=random.uniform(-1, 1), drift_ppb=random.randrange(-50_000, 50_000))
    fleet.start_gateway()
    await fleet.are_ready(WORKERS)
    breaking = asyncio.ensure_future(break_things(fleet, random) if broken else asyncio.sleep(0))
    calls = []
    for number in range(CALLS):
        calls.append(fleet.generate(prompt_of(number), number, TOKENS))
        await asyncio.sleep(0.15)
    answers = [await call for call in calls]
    await breaking
    await asyncio.sleep(REST_S)
    await fleet.are_ready(WORKERS)
    assert await fleet.held(WORKERS) == []
    return [answer.ids for answer in answers]


@cache
def run(seed: int, model: Path, *, broken: bool) -> tuple[list[list[int]], str]:
    """The ids of each answer, and the digest of all that happened."""
    with fleet_of(seed, model) as fleet:
        ids = fleet.world.run(scenario(fleet, broken=broken), limit_s=LIMIT_S)
        return ids, fleet.world.trace.hexdigest()
