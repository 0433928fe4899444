"""Ways to scale a played fleet: not at all, by rules on the present (KEDA's), or by the planner."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from services.cli.planner.arrival_window import ArrivalWindow
from services.cli.planner.change_budget import ChangeBudget, RoleChange
from services.cli.planner.counts_search import CountsSearch
from services.cli.planner.fleet_planner import ROUND_S
from services.cli.planner.model_planner import ModelPlanner, ModelState
from services.cli.planner.planner_settings import PlannerSettings
from shared.telemetry.metrics import PROMPT_EDGES_TOKENS
from tests.bench.planner_world import PlayedFleet

ROLES = ("prefill", "decode")


class ScalingRule(Protocol):
    every_s: float

    def look(self, fleet: PlayedFleet) -> None: ...


@dataclass
class Fixed:
    """Scales nothing: there are as many as at the beginning."""

    every_s: float = 3600.0

    def look(self, fleet: PlayedFleet) -> None:
        del fleet


@dataclass
class Reactive:
    """The rules of compose/k8s/autoscaling.yaml, as KEDA has a HorizontalPodAutoscaler follow them.

    Prefill: one for each 4 prompts that wait. Decode: as many as make 70 % of KV blocks used, with the 10 %
    in which the autoscaler does nothing. It looks every 15 s at figures of that moment, at most doubles or
    adds 4 at a time, and goes down to the most that it wanted within 300 s.
    """

    least: int = 2
    most: dict[str, int] = field(default_factory=lambda: {"prefill": 8, "decode": 16})
    down_s: float = 300.0
    every_s: float = 15.0
    _wanted: dict[str, deque[tuple[float, int]]] = field(default_factory=lambda: {r: deque() for r in ROLES})

    def look(self, fleet: PlayedFleet) -> None:
        counts = fleet.counts()
        share = fleet.kv_share() / 0.7
        wanted = {
            "prefill": math.ceil(fleet.prefill_queue() / 4),
            "decode": counts["decode"] if abs(share - 1) <= 0.1 else math.ceil(counts["decode"] * share),
        }
        for role, now in counts.items():
            bounded = max(self.least, min(self.most[role], wanted[role], max(2 * now, now + 4)))
            kept = self._wanted[role]
            kept.append((fleet.now_s, bounded))
            while kept[0][0] < fleet.now_s - self.down_s:
                kept.popleft()
            fleet.scale(role, max(each for _, each in kept) if bounded < now else bounded)


class Planned:
    """The planner of the product, which sees what it sees of a fleet: counts of windows, and who waits."""

    def __init__(self, fleet: PlayedFleet, settings: PlannerSettings, search: CountsSearch) -> None:
        self.every_s = ROUND_S
        self._planner = ModelPlanner(settings, search, 0.0, fleet.cold_s)
        self._budget = ChangeBudget(settings.changes_per_minute)
        self._came = self._first = 0
        self._answering: list[int] = []

    def look(self, fleet: PlayedFleet) -> None:
        self._planner.add(self._window(fleet))
        waiting = len(fleet.waiting) + fleet.prefill_queue()
        state = ModelState(fleet.counts(), waiting)
        plan = self._planner.decide(fleet.now_s, state, fleet.profile, fleet.cold_s)
        changes = [
            RoleChange("", each.role, each.now, each.wanted, "")
            for each in plan.roles
            if each.wanted != each.now
        ]
        made, _ = self._budget.allowed(fleet.now_s, changes)
        self._budget.spend(fleet.now_s, made)
        for change in made:
            fleet.scale(change.role, change.wanted)

    def _window(self, fleet: PlayedFleet) -> ArrivalWindow:
        came = fleet.arrived
        self._answering += range(self._came, came)
        begun = [
            fleet.requests[each]
            for each in self._answering
            if 0 < fleet.requests[each].first_s <= fleet.now_s
        ]
        self._answering = [
            each for each in self._answering if not 0 < fleet.requests[each].first_s <= fleet.now_s
        ]
        lengths: dict[float, float] = {}
        for request in begun:
            edge = next((e for e in PROMPT_EDGES_TOKENS if request.prompt_tokens <= e), math.inf)
            lengths[float(edge)] = lengths.get(float(edge), 0.0) + 1
        prompts = sum(each.prompt_tokens for each in begun)
        window = ArrivalWindow(
            fleet.now_s,
            self.every_s,
            came - self._came,
            len(begun),
            prompts,
            fleet.cached_share * prompts,
            sum(each.output_tokens for each in begun),
            lengths,
        )
        self._came = came
        return window
