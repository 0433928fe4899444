"""Measure how far away other regions are, now and then: a question that costs a worker nothing."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from services.gateway.fleet.routing import cheapest_instance, load_cost
from services.gateway.regions.regions import Regions
from shared.bus import Bus
from shared.bus.fleet import FleetView
from shared.bus.subjects import inbox
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import PenstockError
from shared.messages import HoldReport, LivenessCheck
from shared.tasks import cancel_until_done, start_task
from shared.ticks import until_tick

log = structlog.get_logger()

LOOK_S = 0.5
"""The time between two looks which region is to be measured."""
PROBE_S = 2.0
"""The time between two measurements of a region while there are requests."""
REST_PROBE_S = 30.0
"""The same while there is none."""
PROBE_TIMEOUT_S = 1.0
PROBE = "region-probe"


class RegionWatch:
    """Asks one decode worker of each other region whether it works on a request that nobody has."""

    def __init__(
        self,
        regions: Regions,
        bus: Bus,
        fleet: FleetView,
        gateway: str,
        working: Callable[[], bool],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._regions = regions
        self._bus = bus
        self._fleet = fleet
        self._gateway = gateway
        self._working = working
        self._clock = clock
        self._probed_s: dict[str, float] = {}

    async def run(self) -> None:
        """Measure for ever."""
        while True:
            await self.look()
            await until_tick(LOOK_S)

    async def look(self) -> None:
        """Measure each region whose time has come; one that is new at once."""
        others = self._regions.others()
        self._probed_s = {region: at_s for region, at_s in self._probed_s.items() if region in others}
        now_s, pause_s = self._clock.monotonic_s(), PROBE_S if self._working() else REST_PROBE_S
        due = [
            region
            for region in others
            if region not in self._probed_s or now_s >= self._probed_s[region] + pause_s
        ]
        self._probed_s |= dict.fromkeys(due, now_s)
        probes = [start_task(self._probe(region), name=f"probe-{region}") for region in due]
        try:
            for probe in probes:
                await probe
        finally:
            await cancel_until_done(*probes)

    async def _probe(self, region: str) -> None:
        views = [view for view in self._fleet.instances("decode") if view.heartbeat.region == region]
        instance = cheapest_instance(views, load_cost, 0)
        if not instance:
            return
        end = Deadline.after(PROBE_TIMEOUT_S)
        envelope = self._bus.envelope(PROBE, 1, end, self._gateway)
        asked_s = self._clock.monotonic_s()
        try:
            answer = await self._bus.ask(inbox("decode", instance), LivenessCheck(), envelope, end)
        except PenstockError as error:
            log.info("region_not_measured", region=region, instance=instance, error=str(error))
            return
        if isinstance(answer, HoldReport):
            self._regions.record_round_trip(region, self._clock.monotonic_s() - asked_s)
