"""Route a request: a pure choice from the fleet view. The chosen workers' admission is the truth."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from services.gateway.fleet.model_identity import ModelIdentity
from shared.blocks.block_hash import max_cached_blocks
from shared.blocks.layer_groups import ONE_GROUP, KvGroups
from shared.blocks.room import blocks_ahead
from shared.errors import Unavailable
from shared.messages import DUE_EDGES_S, Heartbeat, WorkerReport
from shared.roles import REQUIRED_ROLES, ROUTED_ROLES, TARGET_ROLES

MISSING_PREFIX_WEIGHT = 0.5
"""A decode instance without any of the prompt's KV counts as if half as full again."""


class Candidate(Protocol):
    """The parts of an InstanceView that routing needs."""

    @property
    def heartbeat(self) -> Heartbeat: ...
    def overlap(self, block_hashes: Sequence[bytes]) -> int: ...


C = TypeVar("C", bound=Candidate)
V = TypeVar("V")
WorkerCost = Callable[[Candidate], tuple[float, ...]]
"""The cost of taking an instance: the least is taken, by its first figure that differs."""


@dataclass(frozen=True, slots=True)
class Need:
    """The work that is to be routed: `tokens` of prompt and log; `output_tokens` may still come.

    `scored`: log-probabilities of the prompt are wanted, so that all of it is computed, cached or not.
    `left_s`: the time until its first token is due, by which prompts are ordered.
    """

    block_hashes: tuple[bytes, ...]
    tokens: int
    output_tokens: int
    scored: bool = False
    left_s: float = math.inf

    @property
    def reusable_hashes(self) -> tuple[bytes, ...]:
        """The names of the blocks that need not be computed where they are."""
        return () if self.scored else self.block_hashes[: max_cached_blocks(self.tokens)]


@dataclass(frozen=True, slots=True)
class RoutingDecision:
    """Instance ids; prefill is "" when decode computes the prompt, speculator when none is ready.

    `region` is another one than the gateway's that the route goes to, "" where all of it is near;
    `why_there`: a word of `services.gateway.regions.home`.
    """

    decode: str
    prefill: str
    detokenizer: str
    speculator: str
    region: str = ""
    why_there: str = ""

    @property
    def prompt_role(self) -> str:
        """The role that computes the prompt and draws the first token."""
        return "prefill" if self.prefill else "decode"

    def instance_of(self, role: str) -> str:
        """ "" for a role that no request is routed to."""
        match role:
            case "detokenizer":
                return self.detokenizer
            case "decode":
                return self.decode
            case "prefill":
                return self.prefill
            case "speculator":
                return self.speculator
        return ""

    @property
    def instances(self) -> tuple[tuple[str, str], ...]:
        """Return who has a part in the route, as (role, instance)."""
        roles = ("prefill", "decode", "speculator", "detokenizer")
        return tuple((role, instance) for role in roles if (instance := self.instance_of(role)))

    def uses(self, role: str, instance: str) -> bool:
        return self.instance_of(role) == instance


def serving(views: Sequence[C], role: str, model: ModelIdentity) -> list[C]:
    """Return the instances that serve `model`; a retriever serves all, a speculator those it drafts for."""
    if role == "speculator":
        return [view for view in views if drafts_for(view.heartbeat, model)]
    return [view for view in views if role not in REQUIRED_ROLES or model.is_served_by(view.heartbeat)]


def drafts_for(speculator: Heartbeat, model: ModelIdentity) -> bool:
    """Whether its guesses are of any use: another model's ids mean something else."""
    return not speculator.worker.drafts_for or model.name in speculator.worker.drafts_for


def longest_context(instances: Callable[[str], Sequence[Candidate]], model: ModelIdentity) -> int:
    """Return the longest context, in tokens, that a worker of each role takes; 0: not known."""
    longest = []
    for role in TARGET_ROLES:
        contexts = [view.heartbeat.context_tokens for view in serving(instances(role), role, model)]
        if contexts and all(contexts):
            longest.append(max(contexts))
    return min(longest, default=0)


def free_slots(
    decodes: Sequence[Candidate], model: ModelIdentity, blocks: int, *, with_guests: bool = False
) -> int | None:
    """Count the requests of `blocks` KV blocks each that the decode workers of `model` have room for, of
    tenants that may be guests there or of any.

    None when nobody can tell: no such worker is there, or a request of that size fits none even alone, and
    whoever is asked will say so.
    """
    beats = [view.heartbeat for view in serving(decodes, "decode", model)]
    if not any(blocks <= beat.worker.kv_blocks for beat in beats):
        return None
    return sum(
        max(0, min(_places(beat, with_guests) - beat.live, beat.worker.kv_blocks_free // max(1, blocks)))
        for beat in beats
    )


def _places(beat: Heartbeat, with_guests: bool) -> int:
    return beat.capacity + (beat.decode.guests if with_guests else 0)


def kv_groups(decodes: Sequence[Candidate], model: ModelIdentity) -> KvGroups:
    """Return the groups of layers in which the decode workers of `model` keep KV."""
    groups = {view.heartbeat.worker.kv_groups for view in serving(decodes, "decode", model)}
    return groups.pop() if len(groups) == 1 else ONE_GROUP


def missing_role(fleet: Mapping[str, Sequence[Candidate]]) -> str:
    """The first of the roles to place on with no instance, else ""."""
    return next((role for role in ROUTED_ROLES if not fleet.get(role)), "")


def leave_out(views: Sequence[C], *shunned: Collection[tuple[str, str]]) -> Sequence[C]:
    """`views` without those that one of the sets names as (role, instance).

    Fails open: where nobody would be left, the last set is given up, then the one before it. An instance
    that may work is better than none.
    """
    if not any(shunned):
        return views
    for count in range(len(shunned), 0, -1):
        named = set().union(*shunned[:count])
        left = [view for view in views if (view.heartbeat.role, view.heartbeat.instance) not in named]
        if left:
            return left
    return views


def leave_out_of_all(
    fleet: Mapping[str, Sequence[C]], *shunned: Collection[tuple[str, str]]
) -> Mapping[str, Sequence[C]]:
    """`leave_out` in every role, unless no prefill and decode that are left would have the same KV layout."""
    if not any(shunned):
        return fleet
    left = {role: leave_out(views, *shunned) for role, views in fleet.items()}
    layouts = [
        {view.heartbeat.worker.layout for view in left.get(role, ())} for role in ("prefill", "decode")
    ]
    return left if layouts[0] & layouts[1] else fleet


def choose_route(
    fleet: Mapping[str, Sequence[Candidate]],
    need: Need,
    prefill_cost: WorkerCost,
    *,
    rotation: int = 0,
    zone: str = "",
    own_detokenizer: str = "",
) -> RoutingDecision:
    """The cheapest instance of every role, of prefill by `prefill_cost`; equals take turns by `rotation`,
    those of `zone` first, and of the zone in which the route is decoded. `own_detokenizer`, which is in the
    gateway's process, comes before all others while it has room.

    Raises Unavailable naming a role that has no instance.
    """
    role = missing_role(fleet)
    if role:
        raise Unavailable(f"no {role} instance is ready: start one or retry later", hop=role)

    def usable(role: str, layouts: Collection[str] | None = None) -> list[Candidate]:
        return [
            view for view in fleet.get(role, ()) if layouts is None or view.heartbeat.worker.layout in layouts
        ]

    def pick(role: str, cost: WorkerCost) -> str:
        return cheapest_instance(usable(role), cost, rotation)

    # KV passes only between workers that lay it out alike.
    decodes = usable("decode", {view.heartbeat.worker.layout for view in usable("prefill")})
    if not decodes:
        raise Unavailable(
            "no prefill and decode worker that are ready have the same KV layout: give both the same "
            "model and the same settings under [model]",
            hop="decode",
        )
    decode = cheapest_instance(decodes, _in_zone(zone, lambda view: _decode_cost(view, need)), rotation)
    chosen = next(view.heartbeat for view in decodes if view.heartbeat.instance == decode)
    beside = chosen.zone if zone else ""
    prefills = usable("prefill", {chosen.worker.layout})
    return RoutingDecision(
        decode=decode,
        prefill=cheapest_instance(prefills, _in_zone(beside, prefill_cost), rotation),
        detokenizer=own_detokenizer
        if _has_place(usable("detokenizer"), own_detokenizer)
        else pick("detokenizer", _in_zone(beside, load_cost)),
        speculator=pick("speculator", _in_zone(beside, load_cost)),
    )


def _has_place(views: Sequence[Candidate], instance: str) -> bool:
    """Return whether that instance is one of them and below its capacity; nobody has no name."""
    named = (view for view in views if instance and view.heartbeat.instance == instance)
    return any(load_cost(view)[0] < 1 for view in named)


def _in_zone(zone: str, cost: WorkerCost) -> WorkerCost:
    """Return `cost` with those of the zone first among equals; as it is for ""."""
    return (lambda view: (*cost(view), float(view.heartbeat.zone != zone))) if zone else cost


def cheapest_instance(views: Sequence[Candidate], cost: WorkerCost, rotation: int) -> str:
    """The id of the cheapest view, "" for none; among equals the one whose turn it is."""
    if len(views) < 2:
        return views[0].heartbeat.instance if views else ""
    ordered = sorted(views, key=lambda view: view.heartbeat.instance)
    costs = [cost(view) for view in ordered]
    least = min(costs)
    equals = [view for view, cost_of in zip(ordered, costs, strict=True) if cost_of == least]
    return equals[rotation % len(equals)].heartbeat.instance


def tokens_before(worker: WorkerReport, prompt_tokens: int, left_s: float) -> int:
    """Return how many tokens a worker computes, at most, before the last of a prompt whose first token is due
    in `left_s`, but for those of the prompt itself: those that are due before, and of others as many, since
    shorter ones take turns with it."""
    for edge_s, tokens in zip(DUE_EDGES_S, worker.due_tokens, strict=False):
        if left_s <= edge_s:
            return min(tokens + prompt_tokens, worker.queued_tokens)
    return worker.queued_tokens


def load_cost(view: Candidate) -> tuple[float, ...]:
    """Return how full an instance is: 1 is at its capacity."""
    beat = view.heartbeat
    return ((beat.live + beat.queued) / max(1, beat.capacity),)


def decodes_by_cost(views: Sequence[V], loaded: Callable[[V], Candidate], need: Need) -> list[V]:
    """Return the decode workers that have room for `need`, as `loaded` shows them, the best first."""
    found = [(view, loaded(view)) for view in views]
    costs = [(_decode_cost(shown, need), shown.heartbeat.instance, view) for view, shown in found]
    return [view for cost, _, view in sorted(costs, key=lambda each: each[:2]) if cost[0] < 1]


def has_room(view: Candidate, need: Need) -> bool:
    """Whether a decode worker has room for all of `need`."""
    return _decode_cost(view, need)[0] < 1


def _decode_cost(view: Candidate, need: Need) -> tuple[float, ...]:
    """First those with room for all of it, then those that take guests, then the least load with the prefix
    that is missing there."""
    beat = view.heartbeat
    cached, groups = view.overlap(need.block_hashes), beat.worker.kv_groups
    there = groups.read_blocks(cached, need.tokens)
    wanted = blocks_ahead(need.tokens, need.output_tokens, groups) - there
    full = beat.live + beat.queued >= beat.capacity or wanted > beat.worker.kv_blocks_free
    no_place = beat.live >= _places(beat, with_guests=True)
    missing = 1.0 - cached / len(need.block_hashes) if need.block_hashes else 0.0
    return (float(full) + float(no_place), load_cost(view)[0] + MISSING_PREFIX_WEIGHT * missing)
