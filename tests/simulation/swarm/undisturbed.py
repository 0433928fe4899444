"""What a fleet answers to each ask where nothing disturbs it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tests.simulation.fleet import any_fleet_of
from tests.simulation.swarm.asks import ASKS
from tests.simulation.swarm.client import Client
from tests.simulation.swarm.keys import OWNER
from tests.simulation.swarm.place import Place
from tests.simulation.swarm.plan import ROLES, Plan, PlannedCall, PlannedNode
from tests.simulation.swarm.play import READY_S
from tests.simulation.swarm.reader import Response
from tests.simulation.swarm.swarm_fleet import SwarmFleet


def ask_undisturbed(place: Place) -> list[list[Response]]:
    """By ask and choice. Raises AssertionError where one does not finish."""
    nodes = tuple(PlannedNode(f"{role}-0", 0.0, 0) for role in ROLES if role != "speculator")
    plan = Plan(0, nodes, (), (), keyed=True)
    with any_fleet_of(plan.seed, partial(SwarmFleet, plan, place)) as fleet:
        return fleet.world.run(_ask_all(fleet, plan))


async def _ask_all(fleet: SwarmFleet, plan: Plan) -> list[list[Response]]:
    await fleet.server.start()
    fleet.begin_missing()
    assert await fleet.is_reached(fleet.all_ready, READY_S)
    clients = [
        Client(fleet, plan, PlannedCall(number, number * 0.05, number, key=OWNER), [None] * ask.n)
        for number, ask in enumerate(ASKS)
    ]
    ends = await asyncio.gather(*(client.live() for client in clients))
    assert all(client.has_finished for client in clients), (ends, fleet.record.broken)
    readers = [one for client in clients for one in client.readers]
    assert not any(one.degraded for one in readers), [one.degraded for one in readers]
    return [[one.got for one in client.readers] for client in clients]


def save(responses: list[list[Response]], path: Path) -> None:
    """Keep them for who changes the fleet: what it should answer stays."""
    path.write_text(json.dumps([[asdict(one) for one in several] for several in responses]))


def load(path: Path) -> list[list[Response]]:
    told = [[Response(**one) for one in several] for several in json.loads(path.read_text())]
    for one in (one for several in told for one in several):
        one.logprobs = [(token, value) for token, value in one.logprobs]
        one.prompt_logprobs = [(token, value) for token, value in one.prompt_logprobs]
    return told


def right_answers(place: Place, kept: Path | None) -> list[list[Response]]:
    """Return what `ask_undisturbed` does, of the file `kept` where there is one; else it is made."""
    if kept is not None and kept.exists():
        return load(kept)
    answers = ask_undisturbed(place)
    if kept is not None:
        save(answers, kept)
    return answers
