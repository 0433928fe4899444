"""Route a request where its region matters: near, unless another region is needed or notably better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from services.gateway.fleet.best_route import BestRoute, LoadedFleet, cached_prefix
from services.gateway.fleet.routing import Need
from services.gateway.fleet.sent_load import LoadedView
from services.gateway.regions.home import NOTABLY, NOTABLY_S, Home, RegionRoute
from services.gateway.regions.route_cost import KindRates, route_cost, view_of
from services.gateway.regions.ways import Ways
from shared.errors import Unavailable
from shared.roles import ROUTED_ROLES

RouteOn = Callable[[LoadedFleet], BestRoute]
UNNAMED = "unnamed"
"""The region of instances that say none, in a fleet in which others do."""


@dataclass(frozen=True, slots=True)
class RegionRouting:
    """Routes one request by region. `zone` comes first among equals; `left_s` is the time until its
    first token's deadline; `may_compute_at_decode`: a decode worker may compute the prompt."""

    ways: Ways
    home: Home
    zone: str
    left_s: float
    may_compute_at_decode: bool

    def route(self, fleet: LoadedFleet, need: Need, route_on: RouteOn) -> BestRoute:
        """Return the best route on instances of `fleet`; `route_on` finds that of some of them.

        Where nobody elsewhere could be notably sooner than the own region, no other one is looked at. Raises
        what `route_on` does where no region has a route.
        """
        own, rates = self.ways.own, KindRates(fleet)
        near = self._in_region(own, fleet, need, route_on, rates)
        if near is not None and not near.is_whole:
            near = None
        if near is not None and self._is_soon(near, fleet):
            return near.best
        others = [
            found
            for region in sorted({view.heartbeat.region for view in fleet["decode"]})
            if (region != own or near is None)
            and (found := self._in_region(region, fleet, need, route_on, rates)) is not None
        ]
        chosen, why = self.home.choose(near, min(others, key=_penalized_s, default=None), self.left_s)
        if chosen is None:
            return route_on(fleet)
        return chosen.best if chosen is near else self._told(chosen, fleet, why)

    def _is_soon(self, near: RegionRoute, fleet: LoadedFleet) -> bool:
        if near.cost.first_token_s > self.left_s or not self.home.is_trusted:
            return False
        regions = {view.heartbeat.region for view in fleet["decode"]} - {self.ways.own}
        least_s = min((2 * self.ways.way_s(self.ways.own, region) for region in regions), default=None)
        return least_s is None or near.cost.seconds <= max(NOTABLY * least_s, NOTABLY_S + least_s)

    def _in_region(
        self, region: str, fleet: LoadedFleet, need: Need, route_on: RouteOn, rates: KindRates
    ) -> RegionRoute | None:
        """Return the best route that decodes in `region`; roles that it lacks are taken from the nearest
        region that has them. None where there is none."""
        own = {
            role: [view for view in views if view.heartbeat.region == region] for role, views in fleet.items()
        }
        if not own["decode"]:
            return None
        is_whole = all(own[role] for role in ROUTED_ROLES)
        parts = own if is_whole else self._completed(own, region, fleet)
        try:
            best = route_on(parts)
        except Unavailable:  # nobody, or nobody whose KV is laid out alike
            return None
        if not is_whole:
            best = self._computed_sooner(best, parts, need, rates)
        return RegionRoute(region, best, route_cost(best, parts, need, self.ways, rates), is_whole)

    def _completed(
        self, own: Mapping[str, list[LoadedView]], region: str, fleet: LoadedFleet
    ) -> dict[str, list[LoadedView]]:
        layouts = {view.heartbeat.worker.layout for view in own["decode"]}
        parts = dict(own)
        for role in ROUTED_ROLES:
            fit = [
                view for view in fleet[role] if role != "prefill" or view.heartbeat.worker.layout in layouts
            ]
            if fit and not own[role]:
                way_s = {
                    view.heartbeat.region: self.ways.way_s(region, view.heartbeat.region) for view in fit
                }
                nearest = min(sorted(way_s), key=way_s.__getitem__)
                parts[role] = [view for view in fit if view.heartbeat.region == nearest]
        return parts

    def _computed_sooner(
        self, best: BestRoute, parts: LoadedFleet, need: Need, rates: KindRates
    ) -> BestRoute:
        """Return the route without a prefill worker of another region whose KV is there no sooner than the
        decode worker computes it."""
        route = best.decision
        if not route.prefill or not self.may_compute_at_decode:
            return best
        decode = next(view for view in parts["decode"] if view.heartbeat.instance == route.decode)
        if best.prompt_worker.heartbeat.region == decode.heartbeat.region:
            return best
        there = route_cost(best, parts, need, self.ways, rates)
        local = BestRoute(replace(route, prefill=""), decode, cached_prefix(decode, need))
        here = route_cost(local, parts, need, self.ways, rates)
        return best if there.seconds < here.seconds else local

    def _told(self, chosen: RegionRoute, fleet: LoadedFleet, why: str) -> BestRoute:
        """Return its route with the first other region that it goes to."""
        decision = chosen.best.decision
        regions = [
            view_of(fleet, role, decision.instance_of(role)).heartbeat.region
            for role in (decision.prompt_role, "decode", "detokenizer")
        ]
        away = next((region for region in regions if region != self.ways.own), self.ways.own)
        told = replace(decision, region="" if away == self.ways.own else away or UNNAMED, why_there=why)
        return replace(chosen.best, decision=told)


def _penalized_s(route: RegionRoute) -> float:
    """A route in one region comes first, unless it is notably later."""
    return route.cost.seconds if route.is_whole else NOTABLY * route.cost.seconds + NOTABLY_S
