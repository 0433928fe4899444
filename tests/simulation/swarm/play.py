"""Play a plan in a world of its own, from the start of its fleet until nobody holds anything."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from tests.simulation.fleet import any_fleet_of
from tests.simulation.swarm.asks import ASKS
from tests.simulation.swarm.client import FIRST_PROBE, Client
from tests.simulation.swarm.faults import PlannedFaults
from tests.simulation.swarm.place import Place
from tests.simulation.swarm.plan import Plan, PlannedCall
from tests.simulation.swarm.reader import Response
from tests.simulation.swarm.record import Broken, Event
from tests.simulation.swarm.swarm_fleet import SwarmFleet
from tests.simulation.swarm.tenancy import may_search
from tests.simulation.world import World

READY_S = 60.0
"""A fleet is ready, or ready again, within so much."""
PEACEFUL_QUIET_S = 3.0
"""Where nothing has broken, or one message was lost, nothing is held for longer."""
QUIET_S = 45.0
"""Longer than any lease: what is held after it is held for ever."""
WATCH_S = 0.25
LIMIT_S = 1200.0
MOST_ASKED_AGAIN = 2
"""So many calls are made again in the end."""
PROBE_DEADLINE_S = 30.0
"""The fleet has healed: what is asked then is answered within so much."""

Undisturbed = Sequence[Sequence[Response]]
"""By ask and choice."""


@dataclass(frozen=True)
class Played:
    plan: Plan
    digest: str
    events: list[Event]
    broken: list[Broken]
    outcomes: Counter[str]
    world_s: float

    @property
    def rules(self) -> set[str]:
        """The names of the properties that were broken."""
        return {one.rule for one in self.broken}


def play(plan: Plan, place: Place, undisturbed: Undisturbed) -> Played:
    """What a plan comes to; the same again for the same plan."""
    made: list[SwarmFleet] = []

    def make(world: World) -> SwarmFleet:
        made.append(SwarmFleet(plan, place, world))
        return made[0]

    try:
        with any_fleet_of(plan.seed, make) as fleet, fleet.record.logged():
            fleet.world.run(_Course(fleet, plan, undisturbed).run(), limit_s=LIMIT_S)
            fleet.record.close()
    except Exception as error:  # noqa: BLE001 - whatever ends a world is what a seed has found
        made[0].record.fails(error)
    record, world = made[0].record, made[0].world
    return Played(plan, world.trace.hexdigest(), record.events, record.broken, record.outcomes, world.now_s)


class _Course:
    def __init__(self, fleet: SwarmFleet, plan: Plan, undisturbed: Undisturbed) -> None:
        self._fleet = fleet
        self._record = fleet.record
        self._plan = plan
        self._undisturbed = undisturbed

    async def run(self) -> None:
        """All of it, up to the first property that is broken."""
        course = asyncio.ensure_future(self._run_parts())
        stopped = asyncio.ensure_future(self._record.stop.wait())
        watch = asyncio.ensure_future(self._watch())
        await asyncio.wait({course, stopped, watch}, return_when=asyncio.FIRST_COMPLETED)
        for task in (course, stopped, watch):
            task.cancel()
        for ended in await asyncio.gather(course, watch, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    async def _run_parts(self) -> None:
        await self._fleet.server.start()
        self._fleet.begin_missing()
        await self._become_ready("a fleet gets ready")
        await self._be_disturbed()
        self._record.note("world", "nothing breaks any more")
        self._fleet.begin_missing()
        await self._become_ready("a fleet heals")
        await self._answer_again()
        await self._become_quiet()

    async def _become_ready(self, rule: str) -> None:
        if not await self._fleet.is_reached(self._fleet.all_ready, READY_S):
            self._record.breaks(rule, "world", f"not everybody is ready after {READY_S} s")

    async def _be_disturbed(self) -> None:
        faults = PlannedFaults(self._fleet, self._plan.stalls_s, self._plan.step_room)
        parts: list[Coroutine[Any, Any, Any]] = [faults.happen(fault) for fault in self._plan.faults]
        parts += [self._live(call) for call in self._plan.calls]
        await asyncio.gather(*parts)

    async def _live(self, call: PlannedCall) -> Client:
        client = Client(self._fleet, self._plan, call, self._undisturbed[call.ask])
        self._record.outcomes[await client.live()] += 1
        return client

    async def _answer_again(self) -> None:
        """Some of what was asked before is asked once more: a fleet that has healed answers."""
        asked = {(call.ask, call.tenant): call for call in self._plan.calls[:MOST_ASKED_AGAIN]}
        probes = [
            PlannedCall(
                FIRST_PROBE + number,
                0.0,
                call.ask,
                deadline_s=PROBE_DEADLINE_S * self._plan.step_room,
                edge=call.edge,
                gateway=call.gateway,
                key=call.tenant,
            )
            for number, (_, call) in enumerate(sorted(asked.items(), key=lambda one: one[0]))
            if may_search(call.tenant, ASKS[call.ask].corpus)
        ]
        clients = await asyncio.gather(*map(self._live, probes))
        for probe, client in zip(probes, clients, strict=True):
            if not client.has_finished:
                self._record.breaks("a fleet that has healed answers", probe.name, "it did not finish")

    async def _become_quiet(self) -> None:
        fleet = self._fleet
        fleet.tenancy.check_limits(self._plan)
        plan = self._plan
        quiet_s = PEACEFUL_QUIET_S * plan.step_room
        if (plan.faults and not plan.loses_once) or plan.rare:
            quiet_s = QUIET_S
        if not await fleet.is_reached(fleet.nothing_held, quiet_s):
            held = await fleet.all_held()
            self._record.breaks("nothing is held in the end", "world", f"{held}")
        fleet.check_books()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            self._fleet.check_bounds()
