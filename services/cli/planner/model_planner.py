"""Decide, for one model, how many instances of each role there are to be, and say why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.cli.capacity.prediction import Prediction
from services.cli.capacity.profile import DeploymentProfile
from services.cli.planner.arrival_window import ArrivalWindow
from services.cli.planner.counts_search import CountsSearch
from services.cli.planner.forecast import NOBODY_CAME, ArrivalForecast, Forecast
from services.cli.planner.planner_settings import PlannerSettings
from services.cli.planner.request_shape import RequestShape
from services.cli.planner.scale_in_delay import ScaleInDelay
from services.cli.planner.seasons import Seasons

BACKLOG_S = 30.0
"""Requests that wait beyond one a worker are to be gone within this time."""
MAX_AHEAD_S = 600.0
"""A forecast looks no further than this, however slow a start is."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """`counts` are the instances of each role, those that start included; `waiting` requests have no worker
    yet. `may_rest`: other models keep a gateway ready meanwhile."""

    counts: Mapping[str, int]
    waiting: float = 0.0
    may_rest: bool = False


@dataclass(frozen=True, slots=True)
class RolePlan:
    role: str
    now: int
    wanted: int
    why: str


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """`rate` is what was planned for, `ahead_s` how far ahead that is. `trouble` says why nothing is planned,
    "" where it is; `prediction` is for what the load needs alone."""

    forecast: Forecast
    rate: float
    ahead_s: float
    roles: tuple[RolePlan, ...]
    prediction: Prediction | None = None
    trouble: str = ""

    @property
    def ratio(self) -> str:
        """The planned roles and their counts, as `prefill:decode 2:3`."""
        names, counts = (
            ":".join(each) for each in zip(*((r.role, str(r.wanted)) for r in self.roles), strict=True)
        )
        return f"{names} {counts}"


class ModelPlanner:
    """Windows come in the order of time; each decision is made after the windows up to then."""

    def __init__(
        self,
        settings: PlannerSettings,
        search: CountsSearch,
        began_s: float,
        ahead_s: float,
        seasons: Seasons | None = None,
    ) -> None:
        self._settings = settings
        self._search = search
        self._forecast = ArrivalForecast(ahead_s, seasons)
        self._shape = RequestShape()
        self._delays = {role: ScaleInDelay(settings.scale_in_after_s) for role in settings.limits}
        self._asked_s = began_s

    @property
    def seasons(self) -> Seasons:
        return self._forecast.seasons

    def add(self, window: ArrivalWindow) -> None:
        """Learn from what came."""
        self._forecast.add(window)
        self._shape.add(window)
        if window.requests > 0:
            self._asked_s = window.ended_s

    def decide(
        self,
        now_s: float,
        state: ModelState,
        profile: DeploymentProfile | None,
        cold_start_s: float,
        unknown: str = "",
    ) -> ModelPlan:
        """Return the plan; one with `trouble` leaves everything as it is. `unknown` says why there is no
        profile."""
        if state.waiting:
            self._asked_s = now_s
        ahead_s = min(MAX_AHEAD_S, cold_start_s)
        soon, then = self._forecast.at(0.0), self._forecast.at(ahead_s)
        forecast = max(soon, then, key=lambda each: each.high)
        idle_s = now_s - self._asked_s
        if state.may_rest and 0 < self._settings.rest_after_s <= idle_s and not self._season_calls(then):
            why = f"nobody has asked for it in {idle_s:.0f} s, so it rests until somebody does"
            return ModelPlan(forecast, 0.0, ahead_s, self._all(state, 0, why))
        resting = not any(state.counts.get(role, 0) for role in self._settings.limits)
        if profile is None or not self._shape.known:
            missing = "no request has been answered yet"
            if profile is None:
                missing = f"the speed of its workers is not known: {unknown}"
            if resting and state.waiting:
                return ModelPlan(forecast, 0.0, ahead_s, self._woken(state))
            return ModelPlan(forecast, 0.0, ahead_s, self._as_it_is(state), trouble=missing)
        excess = max(0.0, state.waiting - state.counts.get("prefill", 0))
        rate = forecast.high + excess / BACKLOG_S
        if rate <= 0:
            return ModelPlan(forecast, 0.0, ahead_s, self._quiet(now_s, state))
        found = self._search.fewest(profile, self._shape.workload(rate))
        roles = tuple(
            self._role(now_s, role, state, found.prediction, forecast, excess)
            for role in self._settings.limits
        )
        return ModelPlan(forecast, rate, ahead_s, roles, found.prediction)

    def _season_calls(self, then: Forecast) -> bool:
        """Return whether a request is to be expected within the time after which a model rests."""
        return then is not NOBODY_CAME and then.rate * self._settings.rest_after_s >= 1.0

    def _role(
        self,
        now_s: float,
        role: str,
        state: ModelState,
        prediction: Prediction,
        forecast: Forecast,
        excess: float,
    ) -> RolePlan:
        limits, spares = self._settings.limits[role], self._settings.spares
        there, needed = state.counts.get(role, 0), prediction.counts.of(role)
        bounded = limits.bounded(needed + spares)
        wanted = self._delays[role].kept(now_s, bounded, there)
        why = f"{forecast.words} need {needed}"
        if role in prediction.stages:
            why += f", which are {prediction.stages[role].utilization:.0%} busy then"
        if excess:
            why += f"; {excess:.0f} requests wait, to be gone within {BACKLOG_S:g} s"
        if spares:
            why += f"; {spares} more, so that one may fail"
        if not prediction.kept:
            why += f"; {prediction.trouble or 'no number keeps every objective'}"
        if bounded != needed + spares:
            why += f"; there are to be {limits.least} to {limits.most}"
        if wanted > bounded:
            why += f"; {wanted} were needed within {self._settings.scale_in_after_s:g} s"
        return RolePlan(role, there, wanted, why)

    def _quiet(self, now_s: float, state: ModelState) -> tuple[RolePlan, ...]:
        return tuple(
            RolePlan(
                role,
                there := state.counts.get(role, 0),
                self._delays[role].kept(now_s, limits.bounded(limits.least), there),
                f"nobody asks; there are to be {limits.least} to {limits.most}",
            )
            for role, limits in self._settings.limits.items()
        )

    def _woken(self, state: ModelState) -> tuple[RolePlan, ...]:
        why = f"it rested, and {state.waiting:.0f} requests wait for it"
        return tuple(
            RolePlan(role, state.counts.get(role, 0), limits.least, why)
            for role, limits in self._settings.limits.items()
        )

    def _all(self, state: ModelState, count: int, why: str) -> tuple[RolePlan, ...]:
        return tuple(RolePlan(role, state.counts.get(role, 0), count, why) for role in self._settings.limits)

    def _as_it_is(self, state: ModelState) -> tuple[RolePlan, ...]:
        return tuple(
            RolePlan(role, state.counts.get(role, 0), state.counts.get(role, 0), "left as it is")
            for role in self._settings.limits
        )
