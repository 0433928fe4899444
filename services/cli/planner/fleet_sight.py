"""See, in heartbeats, which models there are, who serves them, and who waits for one that rests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.cli.fleet.fleet_watch import Seen
from shared.messages import Heartbeat
from shared.roles import REQUIRED_ROLES, TARGET_ROLES

STALE_S = 5.0
"""Heartbeats that are older than they said by so much are none."""
COUNTED_STATES = ("loading", "ready", "stalled")
"""One that drains is no more."""


@dataclass(frozen=True, slots=True)
class FleetSight:
    """`models` by their names, in their order in the stack; `counts` are instances by model and role; a
    gateway stands for all models. `wanted` are models that requests wait for while they have no worker."""

    models: tuple[str, ...]
    counts: Mapping[str, Mapping[str, int]]
    gateways: tuple[Heartbeat, ...]
    workers: tuple[Heartbeat, ...]
    wanted: frozenset[str] = frozenset()
    trouble: str = ""

    def count(self, model: str, role: str) -> int:
        return self.counts.get(model, {}).get(role, 0)

    @classmethod
    def of(cls, seen: Sequence[Seen], now_s: float) -> FleetSight:
        """`now_s` is the monotonic time by which they were seen. `trouble`: nothing may be planned by it."""
        fresh = [one.beat for one in seen if one.silent_since_s >= now_s - STALE_S]
        gateways = tuple(beat for beat in fresh if beat.role == "gateway" and beat.metrics)
        models = _models_in_order(fresh)
        counts = {
            model: Counter(
                beat.role
                for beat in fresh
                if beat.state in COUNTED_STATES and (beat.model == model or beat.role == "gateway")
            )
            for model in models
        }
        wanted = frozenset(name for beat in gateways for name in beat.gateway.wanted_models if name in models)
        workers = tuple(beat for beat in fresh if beat.role in TARGET_ROLES)
        late = sorted(
            one.beat.instance for one in seen if one.beat not in fresh and one.beat.role == "gateway"
        )
        trouble = ""
        if not gateways:
            trouble = "no gateway is heard, so nothing is known of what comes"
        elif late:
            trouble = f"{', '.join(late)} was heard too long ago, so nothing is known of a part of what comes"
        elif not models:
            trouble = "no instance says which model it serves"
        return cls(models, counts, gateways, workers, wanted, trouble)


def number_of(instance: str) -> int | None:
    """Return the number in `<role>-<n>`, None where there is none."""
    number = instance.rpartition("-")[2]
    return int(number) if number.isdecimal() and len(number) < 5 else None


def _models_in_order(beats: Sequence[Heartbeat]) -> tuple[str, ...]:
    """Return the models of instances that every request needs, by the lowest number of an instance: in a
    stack of several each has the next in turn. A model that rests still has a tokenizer."""
    lowest: dict[str, int] = {}
    for beat in beats:
        number = number_of(beat.instance)
        if beat.role in REQUIRED_ROLES and beat.model:
            lowest[beat.model] = min(lowest.get(beat.model, 9999), 9999 if number is None else number)
    return tuple(sorted(lowest, key=lambda model: (lowest[model], model)))
