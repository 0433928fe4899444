"""Make a plan smaller that breaks a property, as long as it breaks the same one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from tests.simulation.swarm.draw import OF_KEYS
from tests.simulation.swarm.plan import NEEDED_ROLES, ROLES, FaultKind, Plan, PlannedCall
from tests.simulation.swarm.play import Played

Part = TypeVar("Part")
Replay = Callable[[Plan], Played]


def shrink(played: Played, replay: Replay, may_go_on: Callable[[], bool]) -> Played:
    """Return a run of a plan of which no part can be left out, or the smallest one found in time."""
    smallest = played
    while may_go_on():
        for plan in smaller(smallest.plan):
            if not may_go_on():
                return smallest
            tried = replay(plan)
            if tried.rules & played.rules:
                smallest = tried
                break
        else:
            return smallest
    return smallest


def smaller(plan: Plan) -> Iterator[Plan]:
    """Yield plans with less in them, those with the least first."""
    for faults in _fewer(plan.faults):
        yield replace(plan, faults=faults)
    for calls in _fewer(plan.calls):
        if calls:
            yield replace(plan, calls=calls)
    yield from _smaller_fleets(plan)
    yield from _usual_fleets(plan)
    yield from _plainer(plan)


def _smaller_fleets(plan: Plan) -> Iterator[Plan]:
    if len(plan.gateways) > 1:
        yield plan.with_one_gateway()
    if plan.keyed:
        unkeyed = tuple(replace(call, key="") for call in plan.calls)
        yield replace(
            plan,
            keyed=False,
            calls=unkeyed,
            faults=tuple(one for one in plan.faults if one.kind not in OF_KEYS),
        )
    for role in ROLES:
        names = plan.names(role)
        if len(names) > (1 if role in NEEDED_ROLES else 0):
            for name in names:
                yield plan.without_node(name)
    if any(node.skew_s or node.drift_ppb for node in plan.nodes):
        yield replace(plan, nodes=tuple(replace(one, skew_s=0.0, drift_ppb=0) for one in plan.nodes))


def _usual_fleets(plan: Plan) -> Iterator[Plan]:
    """Yield plans of fleets that are as most are in one more way."""
    usual = replace(plan, rare=0.0, narrow=False, answers_wait=False, slowness=1.0)
    for what in ("rare", "narrow", "answers_wait", "slowness"):
        if getattr(plan, what) != getattr(usual, what):
            yield replace(plan, **{what: getattr(usual, what)})


def _plainer(plan: Plan) -> Iterator[Plan]:
    """Yield plans with a call that is as most are, or a fault that is shorter."""
    for at, call in enumerate(plan.calls):
        plain = PlannedCall(
            call.number,
            call.at_s,
            call.ask,
            leaves_after_s=call.leaves_after_s,
            gateway=call.gateway,
            key=call.key,
        )
        if plain != call:
            yield replace(plan, calls=(*plan.calls[:at], plain, *plan.calls[at + 1 :]))
    for at, fault in enumerate(plan.faults):
        if fault.seconds > 1.0 and fault.kind is not FaultKind.CLOCK_SET:
            short = replace(fault, seconds=fault.seconds / 2)
            yield replace(plan, faults=(*plan.faults[:at], short, *plan.faults[at + 1 :]))


def _fewer(parts: tuple[Part, ...]) -> Iterator[tuple[Part, ...]]:
    """Yield `parts` without all, a half, a quarter, … of them."""
    size = len(parts)
    while size:
        for first in range(0, len(parts), size):
            yield parts[:first] + parts[first + size :]
        size //= 2
