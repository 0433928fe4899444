"""Look at a fleet, plan, and have it scaled, until told to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from services.cli.capacity.metrics_page import read_page
from services.cli.fleet.fleet_watch import Fleet
from services.cli.planner.fleet_planner import ROUND_S, FleetPlanner, PlanRound
from services.cli.planner.fleet_sight import FleetSight
from services.cli.planner.model_counts import GatewayPages, ModelCounts, model_counts
from services.cli.planner.plan_record import PlanRecord
from services.cli.planner.scaler import Scaler
from shared.errors import PenstockError, Unavailable
from shared.messages import Heartbeat
from shared.seams.clock import SYSTEM_CLOCK

LOOK_S = 0.1
"""The time between two looks at heartbeats: a request for a model that rests is seen so soon."""
KEEP_S = 900.0
"""The time between two moments at which what was learnt is kept: as long as a slot of it is."""


class PlanLoop:
    """Rounds come every ROUND_S, and at once where requests wait for a model that rests.

    `fleet` fills by itself. What cannot be done is told, and tried again in the next round; without a
    `scaler` nothing is done.
    """

    def __init__(
        self, fleet: Fleet, planner: FleetPlanner, scaler: Scaler | None, record: PlanRecord
    ) -> None:
        self._fleet = fleet
        self._planner = planner
        self._scaler = scaler
        self._record = record

    async def run(self, until: Callable[[PlanRound], bool]) -> PlanRound:
        """Go on until a round is the last one, and return it."""
        due_s, called, kept_s = 0.0, frozenset[str](), time.monotonic()
        while True:
            now_s = time.monotonic()
            sight = FleetSight.of(self._fleet.all(), now_s)
            self._planner.look(sight)
            calling = self._planner.sleepers_called(sight, unix_s())
            if now_s >= due_s or calling - called:
                done = await self._round(sight)
                if until(done):
                    return done
                due_s = now_s + ROUND_S
            called = calling
            if now_s >= kept_s + KEEP_S:
                kept_s = now_s
                self._record.learnt(self._planner.seasons)
            await asyncio.sleep(LOOK_S)

    async def _round(self, sight: FleetSight) -> PlanRound:
        pages, trouble = await read_pages(sight.gateways)
        now_s = unix_s()
        if trouble:
            done = PlanRound(now_s, troubles=(trouble,))
        else:
            done = await asyncio.to_thread(self._planner.round, sight, pages, now_s)
        self._record.planned(done)
        if self._scaler is None or not (done.changes or (done.plans and self._scaler.asked)):
            return done
        try:
            said = await self._scaler.apply(sight, done.targets)
        except PenstockError as error:
            self._record.failed(now_s, done.changes, str(error))
        else:
            self._planner.spend(now_s, done.changes)
            self._record.changed(now_s, done.changes, said)
        return done


def unix_s() -> float:
    return SYSTEM_CLOCK.unix_us() / 1e6


async def read_pages(gateways: tuple[Heartbeat, ...]) -> tuple[GatewayPages, str]:
    """Return what every gateway counts, and why that is not everything, "" where it is."""
    read = await asyncio.gather(*(_counts(beat) for beat in gateways))
    pages = {
        (beat.instance, beat.incarnation): counts
        for beat, counts in zip(gateways, read, strict=True)
        if not isinstance(counts, str)
    }
    return pages, next((said for said in read if isinstance(said, str)), "")


async def _counts(beat: Heartbeat) -> dict[str, ModelCounts] | str:
    try:
        return model_counts(await read_page(beat.metrics))
    except Unavailable as error:
        return f"{beat.instance}: {error.message}"
