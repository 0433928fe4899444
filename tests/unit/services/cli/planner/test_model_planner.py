"""Decisions for one model, and the reasons that are given."""

from __future__ import annotations

from dataclasses import replace

from services.cli.bench.report.service_level import ServiceLevel
from services.cli.capacity.sizing import CapacityQuestion, fewest_instances
from services.cli.planner.arrival_window import ArrivalWindow
from services.cli.planner.counts_search import PLANNED_REQUESTS, CountsSearch
from services.cli.planner.model_planner import BACKLOG_S, ModelPlan, ModelPlanner, ModelState
from services.cli.planner.planner_settings import PlannerSettings, RoleLimits
from tests.unit.services.cli.capacity.deployments import PROFILE, load

LEVELS = (ServiceLevel.read("ttft_p99<1000ms"),)
SETTINGS = PlannerSettings(
    LEVELS, {"prefill": RoleLimits(1, 8), "decode": RoleLimits(1, 8)}, spares=0, rest_after_s=600.0
)
COLD_S = 30.0
HERE = {"prefill": 1, "decode": 1}
SEARCH = CountsSearch(LEVELS)
"""One for all tests: equal loads are looked for once."""


def planner(settings: PlannerSettings = SETTINGS) -> ModelPlanner:
    return ModelPlanner(settings, SEARCH, 0.0, COLD_S)


def seen(rate: float, until_s: float = 300.0, settings: PlannerSettings = SETTINGS) -> ModelPlanner:
    found = planner(settings)
    for number in range(1, int(until_s / 10) + 1):
        count = 10 * rate
        found.add(ArrivalWindow(10.0 * number, 10.0, count, count, 256 * count, 0.0, 64 * count))
    return found


def wanted(plan: ModelPlan) -> dict[str, int]:
    return {each.role: each.wanted for each in plan.roles}


def test_the_counts_are_those_that_the_capacity_model_finds_for_the_forecast() -> None:
    plan = seen(12.0).decide(300.0, ModelState(HERE), PROFILE, COLD_S)
    counts = fewest_instances(CapacityQuestion(PROFILE, load(12.5), LEVELS, requests=PLANNED_REQUESTS)).counts
    assert wanted(plan) == {"prefill": counts.prefill, "decode": counts.decode}
    assert plan.ratio == f"prefill:decode {counts.prefill}:{counts.decode}"
    assert "12 requests/s" in plan.roles[0].why
    assert "% busy" in plan.roles[0].why


def test_one_more_of_each_is_kept_for_one_that_fails() -> None:
    alone = seen(12.0).decide(300.0, ModelState(HERE), PROFILE, COLD_S)
    spare = seen(12.0, settings=replace(SETTINGS, spares=1)).decide(300.0, ModelState(HERE), PROFILE, COLD_S)
    assert wanted(spare) == {role: count + 1 for role, count in wanted(alone).items()}
    assert "one may fail" in spare.roles[0].why


def test_there_are_never_more_than_the_most() -> None:
    settings = replace(SETTINGS, limits={"prefill": RoleLimits(1, 2), "decode": RoleLimits(1, 2)})
    plan = seen(12.0, settings=settings).decide(300.0, ModelState(HERE), PROFILE, COLD_S)
    assert wanted(plan)["prefill"] == 2
    assert "there are to be 1 to 2" in plan.roles[0].why


def test_requests_that_wait_count_as_load_until_they_are_gone() -> None:
    plan = seen(4.0).decide(300.0, ModelState(HERE, waiting=1 + 8 * BACKLOG_S), PROFILE, COLD_S)
    assert plan.rate == plan.forecast.high + 8.0
    assert "requests wait" in plan.roles[0].why


def test_fewer_are_kept_only_after_a_time() -> None:
    many = {"prefill": 6, "decode": 6}
    found = seen(12.0)
    found.decide(300.0, ModelState(many), PROFILE, COLD_S)
    for number in range(31, 60):
        found.add(ArrivalWindow(10.0 * number, 10.0, 5.0, 5.0, 256 * 5.0, 0.0, 64 * 5.0))
    soon = found.decide(590.0, ModelState(many), PROFILE, COLD_S)
    late = found.decide(601.0, ModelState(many), PROFILE, COLD_S)
    assert wanted(soon)["prefill"] > wanted(late)["prefill"] == 1
    assert "were needed within 300 s" in soon.roles[0].why


def test_without_a_profile_or_an_answer_everything_stays_as_it_is() -> None:
    for plan in (
        seen(4.0).decide(300.0, ModelState(HERE), None, COLD_S),
        planner().decide(300.0, ModelState(HERE), PROFILE, COLD_S),
    ):
        assert wanted(plan) == HERE
        assert plan.trouble


def test_a_model_that_nobody_asks_for_rests_where_others_keep_a_gateway_ready() -> None:
    found = seen(1.0)
    early = found.decide(899.0, ModelState(HERE, may_rest=True), PROFILE, COLD_S)
    alone = found.decide(901.0, ModelState(HERE), PROFILE, COLD_S)
    assert all(wanted(early).values())
    assert all(wanted(alone).values())
    for number in range(31, 91):
        found.add(ArrivalWindow(10.0 * number, 10.0, 0.0))
    rests = found.decide(901.0, ModelState(HERE, may_rest=True), PROFILE, COLD_S)
    assert wanted(rests) == {"prefill": 0, "decode": 0}
    assert "nobody has asked for it in 601 s" in rests.roles[0].why


def test_a_model_that_rests_comes_back_for_the_first_request() -> None:
    asleep = {"prefill": 0, "decode": 0}
    state = ModelState(asleep, waiting=1.0, may_rest=True)
    never_seen = planner().decide(2000.0, state, None, COLD_S)
    assert wanted(never_seen) == HERE
    assert "requests wait for it" in never_seen.roles[0].why
    assert wanted(seen(1.0).decide(2000.0, state, PROFILE, COLD_S)) == HERE
