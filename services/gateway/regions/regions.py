"""Hold what one gateway knows of regions: how far they are, whether its own serves, who was routed where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.fleet.routing import Need, RoutingDecision, serving
from services.gateway.regions.home import HOME, Home
from services.gateway.regions.near_first import in_region, near_first
from services.gateway.regions.region_routing import RegionRouting
from services.gateway.regions.round_trips import RoundTrips
from services.gateway.regions.route_cost import KindRates, is_kv_sooner
from services.gateway.regions.ways import Ways
from shared.bus.fleet import FleetView, InstanceView
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.messages import RegionReport
from shared.roles import ROUTED_ROLES, TARGET_ROLES
from shared.telemetry import metrics

MAX_HOMES = 64
"""The most models whose region is watched; the one that was routed least lately is given up."""
MAX_REPORTED = 16
"""The most regions of which a heartbeat tells."""


class Regions:
    """The regions of a fleet as a gateway in `own` sees them, where one is said at all."""

    def __init__(self, own: str, zone: str, fleet: FleetView, clock: Clock = SYSTEM_CLOCK) -> None:
        self.own = own
        self.zone = zone
        self.trips = RoundTrips()
        self.ways = Ways(own, self.trips)
        self._fleet = fleet
        self._clock = clock
        self._homes: dict[ModelIdentity, Home] = {}
        self._routes: Counter[str] = Counter()

    @classmethod
    def of(cls, own: str, zone: str, fleet: FleetView) -> Regions | None:
        """Return None for a gateway that is told no place: then all is in one."""
        return cls(own, zone, fleet) if own or zone else None

    # ---- for routes ---------------------------------------------------------------------------------

    def routing(self, model: ModelIdentity, left_s: float, *, may_compute_at_decode: bool) -> RegionRouting:
        """Return how a request for `model` is routed now, as in RegionRouting."""
        home = self._home_of(model.base)
        home.note_health(is_whole=self.is_whole(self.own, model.base))
        return RegionRouting(self.ways, home, self.zone, left_s, may_compute_at_decode)

    def is_whole(self, region: str, model: ModelIdentity) -> bool:
        """Whether every role that a request for the model is routed to has an instance there."""
        return all(
            any(view.heartbeat.region == region for view in serving(self._fleet.instances(role), role, model))
            for role in ROUTED_ROLES
        )

    def record_route(self, route: RoutingDecision) -> None:
        """All workers of the route have taken it."""
        region = route.region or self.own
        self._routes[region] += 1
        metrics.REGION_ROUTES.labels(region=region, why=route.why_there or HOME).inc()

    def record_answer(self, role: str, instance: str, took_s: float) -> None:
        """An instance has answered a question after so long."""
        view = self._fleet.get(role, instance)
        if view is not None and view.heartbeat.region != self.own:
            self.record_round_trip(view.heartbeat.region, took_s)

    # ---- for whom else a request meets --------------------------------------------------------------

    def near_first(self, views: Sequence[InstanceView]) -> Sequence[InstanceView]:
        """Return those that are to be asked first, as in `near_first`."""
        return near_first(views, self.own)

    def in_own(self, views: Sequence[InstanceView]) -> Sequence[InstanceView]:
        """Return those of the gateway's own region, or all where there is none."""
        return in_region(views, self.own)

    def successors(
        self, views: Sequence[InstanceView], leaving: InstanceView, need: Need, *, stays: bool
    ) -> list[InstanceView]:
        """Return the decode workers that may take a stream: those of other regions only where it cannot
        stay and its KV is there sooner than it is computed again."""
        own = leaving.heartbeat.region
        near = [view for view in views if view.heartbeat.region == own]
        if stays:
            return near
        rates = KindRates({role: self._fleet.instances(role) for role in TARGET_ROLES})
        far = [view for view in views if view.heartbeat.region != own]
        return near + [view for view in far if is_kv_sooner(leaving, view, need.tokens, self.ways, rates)]

    # ---- measuring and telling ----------------------------------------------------------------------

    def record_round_trip(self, region: str, seconds: float) -> None:
        self.trips.record(region, seconds)
        if self.trips.is_measured(region):
            metrics.REGION_ROUND_TRIP.labels(region=region).set(self.trips.seconds(region))

    def others(self) -> Collection[str]:
        """Return the other regions in which somebody decodes, and forget those in which nobody does."""
        there = {view.heartbeat.region for view in self._fleet.instances("decode")} - {self.own}
        for region in set(self.trips.measured) - there:
            self.trips.forget(region)
            metrics.REGION_ROUND_TRIP.remove(region)
        return sorted(there)

    def report(self) -> tuple[RegionReport, ...]:
        """Return what a heartbeat tells: the own region first, then the others that are known."""
        others = sorted(set(self.trips.measured) | (self._routes.keys() - {self.own}))
        reports = (
            RegionReport(
                region,
                round(1e6 * self.trips.seconds(region)) if self.trips.is_measured(region) else 0,
                self._routes[region],
            )
            for region in others
        )
        own = RegionReport(self.own, 0, self._routes[self.own])
        return (own, *reports)[:MAX_REPORTED]

    def _home_of(self, model: ModelIdentity) -> Home:
        home = self._homes.pop(model, None) or Home(self._clock)
        if len(self._homes) >= MAX_HOMES:
            del self._homes[next(iter(self._homes))]
        self._homes[model] = home
        return home


AsPreferred = Callable[[Sequence[InstanceView]], Sequence[InstanceView]]
"""The instances of some that are to be asked first."""


def all_alike(views: Sequence[InstanceView]) -> Sequence[InstanceView]:
    """Prefer nobody: what a gateway does that knows of no regions."""
    return views


def preference(regions: Regions | None) -> AsPreferred:
    """Return who is asked first where nothing is routed."""
    return all_alike if regions is None else regions.near_first
