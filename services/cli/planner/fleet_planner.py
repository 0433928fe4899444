"""Plan for all models of a fleet, from what is seen and counted of it; nothing here waits or acts."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from services.cli.capacity.profile import DeploymentProfile
from services.cli.capacity.profile_file import checked_profile
from services.cli.capacity.stack_profile import StackSightings, missing_fields, profile_document
from services.cli.planner.change_budget import ChangeBudget, RoleChange
from services.cli.planner.cold_starts import ColdStarts
from services.cli.planner.counts_search import CountsSearch
from services.cli.planner.fleet_sight import FleetSight
from services.cli.planner.model_counts import ArrivalCounter, GatewayPages, waiting_requests
from services.cli.planner.model_planner import ModelPlan, ModelPlanner, ModelState
from services.cli.planner.planner_settings import PlannerSettings
from services.cli.planner.seasons import Seasons
from shared.errors import InvalidRequest

ROUND_S = 10.0
"""The time between two looks at the metrics."""
FOLLOW_S = 1.0
"""The time within which whoever starts instances sees that it is to."""
LEAST_SETTLE_S = 10.0
"""The least time for which instances that were asked for count as there; else it is two cold starts."""
Targets = Mapping[str, Mapping[str, int]]
"""The instances that there are to be, by model and role."""


@dataclass(frozen=True, slots=True)
class PlanRound:
    """`changes` are to be made now, `put_off` when there is room for them; `targets` have every model and
    every planned role. `troubles` are sentences on what is not planned, and why."""

    at_s: float
    plans: Mapping[str, ModelPlan] = field(default_factory=dict)
    changes: tuple[RoleChange, ...] = ()
    put_off: tuple[RoleChange, ...] = ()
    targets: Targets = field(default_factory=dict)
    troubles: tuple[str, ...] = ()


class FleetPlanner:
    """`profile` None: the speed of workers is learnt from their heartbeats. `seasons` were kept before. Times
    are of the day, in s."""

    def __init__(
        self,
        settings: PlannerSettings,
        profile: DeploymentProfile | None,
        began_s: float,
        host_cores: int,
        seasons: Mapping[str, Seasons] = MappingProxyType({}),
    ) -> None:
        self._settings = settings
        self._given = profile
        self._began_s = began_s
        self._host_cores = host_cores
        self._kept_seasons = seasons
        self._search = CountsSearch(settings.levels, settings.hosts)
        self._arrivals = ArrivalCounter()
        assumed_s = profile.restart.ready_s if profile is not None else 0.0
        self._starts = ColdStarts(assumed_s or settings.cold_start_s)
        self._budget = ChangeBudget(settings.changes_per_minute)
        self._planners: dict[str, ModelPlanner] = {}
        self._sightings: dict[str, StackSightings] = {}
        self._asked: dict[tuple[str, str], tuple[float, int]] = {}
        """The time at which a role of a model was asked to have so many."""

    @property
    def cold_start_s(self) -> float:
        return self._starts.longest_s + FOLLOW_S

    @property
    def seasons(self) -> Mapping[str, Seasons]:
        """Return what is usual of each model, of those that are away as it was kept."""
        return {**self._kept_seasons, **{model: each.seasons for model, each in self._planners.items()}}

    def look(self, sight: FleetSight) -> None:
        """Learn from heartbeats; called more often than plans are made."""
        self._starts.look(sight.workers)
        for model in sight.models:
            of_model = [*sight.gateways, *(beat for beat in sight.workers if beat.model == model)]
            sightings = self._sightings.setdefault(model, StackSightings())
            sightings.look_at(of_model)
            sightings.keep([beat.instance for beat in of_model])

    def sleepers_called(self, sight: FleetSight, now_s: float) -> frozenset[str]:
        """Return models that requests wait for and of which some planned role has no instance."""
        roles = self._settings.limits
        return frozenset(
            model
            for model in sight.wanted
            if not all(self._count(sight, model, role, now_s) for role in roles)
        )

    def round(self, sight: FleetSight, pages: GatewayPages, now_s: float) -> PlanRound:
        """Return what there is to do now; `spend` is to be called with the changes that were made."""
        windows = self._arrivals.windows(now_s, pages)
        if sight.trouble:
            return PlanRound(now_s, troubles=(sight.trouble,))
        waiting = waiting_requests(pages)
        plans: dict[str, ModelPlan] = {}
        resting: set[str] = set()
        for model in sight.models:
            planner = self._planners.get(model)
            if planner is None:
                ahead_s = self.cold_start_s
                planner = ModelPlanner(
                    self._settings, self._search, self._began_s, ahead_s, self._kept_seasons.get(model)
                )
                self._planners[model] = planner
            if model in windows:
                planner.add(windows[model])
            state = self._state(sight, model, waiting.get(model, 0.0), resting, now_s)
            profile, missing = self._profile(model)
            plans[model] = planner.decide(now_s, state, profile, self.cold_start_s, missing)
            if not any(each.wanted for each in plans[model].roles):
                resting.add(model)
        for model in self._planners.keys() - {*sight.models}:
            del self._planners[model]
            self._sightings.pop(model, None)
        return self._made(plans, now_s)

    def spend(self, now_s: float, changes: tuple[RoleChange, ...]) -> None:
        """Count changes that were made: until they show, what was asked for is taken for what is there."""
        self._budget.spend(now_s, changes)
        for change in changes:
            self._asked[change.model, change.role] = now_s, change.wanted

    def _made(self, plans: Mapping[str, ModelPlan], now_s: float) -> PlanRound:
        wanted = [
            RoleChange(model, each.role, each.now, each.wanted, each.why)
            for model, plan in plans.items()
            for each in plan.roles
            if each.wanted != each.now
        ]
        changes, put_off = self._budget.allowed(now_s, wanted)
        targets = {model: {each.role: each.now for each in plan.roles} for model, plan in plans.items()}
        for change in changes:
            targets[change.model][change.role] = change.wanted
        troubles = tuple(f"{model}: {plan.trouble}" for model, plan in plans.items() if plan.trouble)
        return PlanRound(now_s, plans, tuple(changes), tuple(put_off), targets, troubles)

    def _state(
        self, sight: FleetSight, model: str, waiting: float, resting: Collection[str], now_s: float
    ) -> ModelState:
        roles = self._settings.limits
        counts = {role: self._count(sight, model, role, now_s) for role in roles}
        others = [each for each in sight.models if each != model and each not in resting]
        awake = any(self._count(sight, each, role, now_s) for each in others for role in roles)
        called = max(waiting, 1.0) if model in sight.wanted else waiting
        return ModelState(counts, called, may_rest=awake)

    def _count(self, sight: FleetSight, model: str, role: str, now_s: float) -> int:
        """Return how many there are, or were asked for so lately that they may be on their way."""
        asked_s, asked = self._asked.get((model, role), (-math.inf, 0))
        settle_s = max(LEAST_SETTLE_S, 2 * self.cold_start_s)
        there = sight.count(model, role)
        if now_s - asked_s < settle_s and asked != there:
            return asked
        self._asked.pop((model, role), None)
        return there

    def _profile(self, model: str) -> tuple[DeploymentProfile | None, str]:
        """Return the given one, else what heartbeats tell; None where that is too little, and what it lacks.

        Steps are taken for those of one sequence until some were seen with streams in them.
        """
        if self._given is not None:
            restart = replace(self._given.restart, ready_s=self._starts.longest_s)
            return replace(self._given, restart=restart), ""
        sightings = self._sightings.get(model)
        if sightings is None:
            return None, "no heartbeat of its workers was heard"
        document = profile_document(sightings, {}, {}, self._host_cores)
        document["gateway"].setdefault("cpu_ms", 0.0)
        if sightings.last_step_ms:
            document["decode"].setdefault("step_ms", [[1, sightings.last_step_ms]])
        if missing := missing_fields(document):
            return None, f"heartbeats have not told {', '.join(missing)} yet"
        try:
            return checked_profile("what heartbeats tell", document), ""
        except InvalidRequest as error:  # as of a worker that says more slots than a profile may have
            return None, error.message
