"""Choose the best route now: without those that are shunned, and with the load that is under way to each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class BestRoute:
    """`prompt_worker` is the instance that computes the prompt, as its next heartbeat will show it, and
    `prefix` what it need not compute of it."""

    decision: RoutingDecision
    prompt_worker: LoadedView
    prefix: KnownPrefix


def best_route(
    routed: Mapping[str, Sequence[InstanceView]],
    speculators: Sequence[InstanceView],
    need: Need,
    *shunned: Collection[tuple[str, str]],
    sent_load: SentLoad,
    most_local_tokens: int,
    rotation: int,
) -> BestRoute:
    """Route `need` on the instances of `routed`, by role, that are not `shunned` as far as others are left.

    A prompt of at most `most_local_tokens` may be computed at the decode worker. Raises Unavailable, which
    names a role without an instance.
    """
    loaded = {role: [sent_load.with_sent(view) for view in views] for role, views in routed.items()}
    fleet = {
        **leave_out_of_all(loaded, *shunned),
        "speculator": [sent_load.with_sent(view) for view in speculators],
    }
    # Who has no room for a prompt may lend its beginning all the same; who fails is asked for nothing.
    known = KnownPrefixes(leave_out(loaded.get("prefill", ()), *shunned[:1]), need)
    route = choose_route(fleet, need, known.cost, rotation=rotation)
    route = beside_shared_prefix(route, fleet, need, known, sent_load.prefixes)
    route = on_shorter_path(route, fleet, need, known, most_tokens=most_local_tokens)
    instance = route.instance_of(route.prompt_role)
    worker = next(view for view in fleet[route.prompt_role] if view.heartbeat.instance == instance)
    return BestRoute(route, worker, known.at(worker) if route.prefill else _cached(worker, need))


def _cached(decode: LoadedView, need: Need) -> KnownPrefix:
    """Return what a decode worker has of a prompt that it computes itself."""
    return KnownPrefix(decode.overlap(need.reusable_hashes))
