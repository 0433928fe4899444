"""Choose the best route now: without those that are shunned, and with the load that is under way to each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.gateway.fleet.known_prefixes import KnownPrefix, KnownPrefixes
from services.gateway.fleet.prompt_path import beside_shared_prefix, on_shorter_path
from services.gateway.fleet.routing import (
    Need,
    RoutingDecision,
    choose_route,
    leave_out,
    leave_out_of_all,
)
from services.gateway.fleet.sent_load import LoadedView, SentLoad
from shared.bus.fleet import InstanceView

LoadedFleet = Mapping[str, Sequence[LoadedView]]


@dataclass(frozen=True, slots=True)
class BestRoute:
    """`prompt_worker` is the instance that computes the prompt, as its next heartbeat will show it, and
    `prefix` what it need not compute of it."""

    decision: RoutingDecision
    prompt_worker: LoadedView
    prefix: KnownPrefix


class PlaceRouting(Protocol):
    """Chooses between the routes of several places, by their distance."""

    @property
    def zone(self) -> str: ...
    def route(
        self, fleet: LoadedFleet, need: Need, route_on: Callable[[LoadedFleet], BestRoute]
    ) -> BestRoute: ...


def best_route(
    routed: Mapping[str, Sequence[InstanceView]],
    speculators: Sequence[InstanceView],
    need: Need,
    *shunned: Collection[tuple[str, str]],
    sent_load: SentLoad,
    most_local_tokens: int,
    rotation: int,
    by_place: PlaceRouting | None = None,
    own_detokenizer: str = "",
) -> BestRoute:
    """Route `need` on the instances of `routed`, by role, that are not `shunned` as far as others are left.

    A prompt of at most `most_local_tokens` may be computed at the decode worker; `by_place` chooses between
    the routes of several places, None: there is one; `own_detokenizer` is the one in this process. Raises
    Unavailable, which names a role without an instance.
    """
    loaded = {role: [sent_load.with_sent(view) for view in views] for role, views in routed.items()}
    fleet = {
        **leave_out_of_all(loaded, *shunned),
        "speculator": [sent_load.with_sent(view) for view in speculators],
    }
    # Who has no room for a prompt may lend its beginning all the same; who fails is asked for nothing.
    lending = leave_out(loaded.get("prefill", ()), *shunned[:1])

    def route_on(instances: LoadedFleet) -> BestRoute:
        zone, lenders = "", lending
        if by_place is not None:
            zone, lenders = by_place.zone, _in_regions_of(instances["prefill"], lending)
        known = KnownPrefixes(lenders, need)
        route = choose_route(
            instances, need, known.cost, rotation=rotation, zone=zone, own_detokenizer=own_detokenizer
        )
        route = beside_shared_prefix(route, instances, need, known, sent_load.prefixes)
        route = on_shorter_path(route, instances, need, known, most_tokens=most_local_tokens)
        views, instance = instances[route.prompt_role], route.instance_of(route.prompt_role)
        worker = next(view for view in views if view.heartbeat.instance == instance)
        return BestRoute(route, worker, known.at(worker) if route.prefill else cached_prefix(worker, need))

    return route_on(fleet) if by_place is None else by_place.route(fleet, need, route_on)


def _in_regions_of(prefills: Sequence[LoadedView], lending: Sequence[LoadedView]) -> Sequence[LoadedView]:
    """Return those that lend without a way to another region."""
    regions = {view.heartbeat.region for view in prefills}
    return [view for view in lending if view.heartbeat.region in regions]


def cached_prefix(decode: LoadedView, need: Need) -> KnownPrefix:
    """Return what a decode worker has of a prompt that it computes itself."""
    return KnownPrefix(decode.overlap(need.reusable_hashes))
