"""Tell a run so that a reader can follow it: who was there, what was asked and broken, what went wrong."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.swarm.asks import ASKS
from tests.simulation.swarm.plan import Leaving, Plan, PlannedCall
from tests.simulation.swarm.play import Played
from tests.simulation.swarm.record import Event

MOST_EVENTS = 120
"""Of a longer run the events in the middle are left out."""


def tell(played: Played) -> str:
    """Many lines, the property that was broken last."""
    lines = [*_told_plan(played.plan), "", "what happened:"]
    lines += _some(played.events)
    lines += ["", *(f"broken: {one}" for one in played.broken), f"trace {played.digest}"]
    return "\n".join(lines)


def _told_plan(plan: Plan) -> Iterator[str]:
    yield f"seed {plan.seed}: {', '.join([*(node.name for node in plan.nodes), *plan.gateways])}"
    yield (
        f"  {plan.kv_blocks} blocks and {plan.max_sequences} sequences an engine; decode computes prompts of "
        f"up to {plan.local_prefill_tokens} tokens itself, in steps of {plan.batch_tokens}"
    )
    if plan.slowness != 1.0:
        yield f"  steps take {plan.slowness:g} times as long as usual"
    if plan.answers_wait:
        yield "  each answer on the bus waits until there is room for it"
    if plan.narrow:
        yield "  one cell of KV may be on its way to a decode worker"
    if plan.offloads:
        yield "  what gives way there goes to disk"
    if plan.rare:
        yield f"  rare paths are taken with a chance of {plan.rare}"
    for node in plan.nodes:
        if node.skew_s or node.drift_ppb:
            yield f"  {node.name}: {node.skew_s:+.3f} s of skew, {node.drift_ppb / 1000:+.1f} ppm of drift"
    for call in plan.calls:
        yield f"  at {call.at_s:.3f} s {_told_call(call)}"
    for fault in plan.faults:
        yield f"  at {fault.at_s:.3f} s {fault.told()}"


def _told_call(call: PlannedCall) -> str:
    parts = [f"{call.name} asks {call.gateway} {call.edge.value} for {ASKS[call.ask].what}"]
    if call.key:
        parts.append(f"with the key {call.key}")
    if call.deadline_s:
        parts.append(f"within {call.deadline_s:.3f} s")
    if call.ttft_deadline_s:
        parts.append(f"the first token within {call.ttft_deadline_s:.3f} s")
    if call.read_pause_s:
        parts.append(f"reads with pauses of {call.read_pause_s:.3f} s")
    if call.leaving is not Leaving.STAYS:
        parts.append(f"{call.leaving.value} after {call.leaves_after_s:.3f} s")
    return ", ".join(parts)


def _some(events: list[Event]) -> Iterator[str]:
    left_out = len(events) - MOST_EVENTS
    if left_out <= 0:
        yield from map(str, events)
        return
    yield from map(str, events[: MOST_EVENTS // 4])
    yield f"  … {left_out} more …"
    yield from map(str, events[left_out + MOST_EVENTS // 4 :])
