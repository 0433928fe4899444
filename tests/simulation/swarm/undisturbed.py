"""What a fleet answers to each ask where nothing disturbs it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tests.simulation.fleet import any_fleet_of
from tests.simulation.swarm.asks import ASKS
from tests.simulation.swarm.client import Client, ended_well
from tests.simulation.swarm.plan import NEEDED_ROLES, Plan, PlannedCall, PlannedNode
from tests.simulation.swarm.play import READY_S
from tests.simulation.swarm.reader import Response
from tests.simulation.swarm.swarm_fleet import SwarmFleet


def ask_undisturbed(model: Path) -> list[list[Response]]:
    """By ask and choice. Raises AssertionError where one does not finish."""
    nodes = tuple(PlannedNode(f"{role}-0", 0.0, 0) for role in NEEDED_ROLES)
    plan = Plan(0, nodes, (), ())
    with any_fleet_of(plan.seed, partial(SwarmFleet, plan, model)) as fleet:
        return fleet.world.run(_ask_all(fleet, plan))


async def _ask_all(fleet: SwarmFleet, plan: Plan) -> list[list[Response]]:
    await fleet.server.start()
    fleet.begin_missing()
    assert await fleet.is_reached(fleet.all_ready, READY_S)
    clients = [
        Client(fleet, plan, PlannedCall(number, number * 0.05, number), [None] * ask.n)
        for number, ask in enumerate(ASKS)
    ]
    ends = await asyncio.gather(*(client.live() for client in clients))
    readers = [client.readers for client in clients]
    assert all(ended_well(one.end) for several in readers for one in several), ends
    return [[one.got for one in several] for several in readers]


def save(responses: list[list[Response]], path: Path) -> None:
    """Keep them for who changes the fleet: what it should answer stays."""
    path.write_text(json.dumps([[asdict(one) for one in several] for several in responses]))


def load(path: Path) -> list[list[Response]]:
    told = [[Response(**one) for one in several] for several in json.loads(path.read_text())]
    for one in (one for several in told for one in several):
        one.logprobs = [(token, value) for token, value in one.logprobs]
        one.prompt_logprobs = [(token, value) for token, value in one.prompt_logprobs]
    return told
