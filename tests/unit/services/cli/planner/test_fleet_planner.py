"""Plans for a fleet: all its models, what is asked for already, and what is put off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from services.cli.bench.report.service_level import ServiceLevel
from services.cli.planner.fleet_planner import LEAST_SETTLE_S, FleetPlanner, PlanRound
from services.cli.planner.planner_settings import PlannerSettings, RoleLimits
from shared.messages import Heartbeat
from tests.unit.services.cli.capacity.deployments import PROFILE
from tests.unit.services.cli.planner.sights import beat, counted, fleet, sight, small

SETTINGS = PlannerSettings(
    (ServiceLevel.read("ttft_p99<1000ms"),),
    {"prefill": RoleLimits(1, 8), "decode": RoleLimits(1, 8)},
    spares=0,
    rest_after_s=600.0,
)
GATEWAY = ("gateway-0", 1)


class Rounds:
    """A planner, and rounds of it ten seconds apart."""

    def __init__(self, settings: PlannerSettings = SETTINGS) -> None:
        self.planner = FleetPlanner(settings, PROFILE, 0.0, 2)
        self.now_s = 0.0
        self.requests = 0.0

    def one(self, beats: list[Heartbeat], rate: float, *, spend: bool = True) -> PlanRound:
        self.now_s += 10.0
        self.requests += 10 * rate
        done = self.planner.round(sight(beats), {GATEWAY: counted(self.requests)}, self.now_s)
        if spend:
            self.planner.spend(self.now_s, done.changes)
        return done


def test_a_load_that_grows_has_more_of_both_and_says_why() -> None:
    rounds = Rounds()
    rounds.one(fleet(), 0.0)
    for _ in range(3):
        done = rounds.one(fleet(), 9.0, spend=False)
    assert {change.role for change in done.changes} <= {"prefill", "decode"}
    assert done.targets["large"]["prefill"] > 1
    assert "requests/s" in done.changes[0].words


def test_what_was_asked_for_counts_until_it_shows_and_no_longer() -> None:
    rounds = Rounds()
    rounds.one(fleet(), 0.0)
    for _ in range(3):
        done = rounds.one(fleet(), 9.0)
    asked = done.targets["large"]["prefill"]
    again = rounds.one(fleet(), 9.0)
    assert asked > 1
    assert all(change.wanted >= asked for change in again.changes if change.role == "prefill")
    rounds.now_s += max(LEAST_SETTLE_S, 2 * rounds.planner.cold_start_s)
    assert "prefill" in {change.role for change in rounds.one(fleet(), 9.0).changes}, "it never came"


def test_more_than_may_change_in_a_minute_is_put_off() -> None:
    rounds = Rounds(replace(SETTINGS, changes_per_minute=1))
    rounds.one(fleet(), 0.0)
    for _ in range(3):
        done = rounds.one(fleet(), 30.0, spend=False)
    assert sum(change.size for change in done.changes) == 1
    assert done.put_off


def test_nothing_is_changed_by_a_fleet_that_is_not_seen() -> None:
    done = Rounds().one([beat("decode")], 5.0)
    assert (done.changes, done.targets) == ((), {})
    assert done.troubles == ("no gateway is heard, so nothing is known of what comes",)


def test_of_two_models_that_nobody_asks_for_one_stays_awake() -> None:
    rounds = Rounds()
    for _ in range(62):
        done = rounds.one(fleet(*small()), 0.0)
    assert sorted(count for roles in done.targets.values() for count in roles.values()) == [0, 0, 1, 1]


def test_a_model_that_rests_is_called_by_those_who_wait_for_it() -> None:
    rounds = Rounds()
    beats = fleet(*small(awake=False))
    rounds.one(beats, 1.0)
    rounds.planner._asked.clear()
    calling = [beat("gateway", metrics="127.0.0.1:1", wanted_models=("small",)), *beats[1:]]
    assert rounds.planner.sleepers_called(sight(beats), rounds.now_s) == frozenset()
    assert rounds.planner.sleepers_called(sight(calling), rounds.now_s) == {"small"}
    done = rounds.one(calling, 1.0)
    assert done.targets["small"] == {"prefill": 1, "decode": 1}
    assert rounds.planner.sleepers_called(sight(calling), rounds.now_s) == frozenset(), "it is on its way"


def test_what_heartbeats_have_not_told_is_named_and_a_step_of_an_idle_worker_is_one_of_one_stream() -> None:
    planner = FleetPlanner(SETTINGS, None, 0.0, 2)
    room: dict[str, Any] = {"kv_blocks": 4096, "capacity": 16, "most_threads": 1}
    silent = fleet(beat("prefill", 2, tokens_per_s=1500.0), beat("decode", 2, sent_unix_us=5, **room))
    idle = [*silent[:-1], beat("decode", 2, sent_unix_us=6, step_us=12_000, **room)]
    said = []
    for number, beats in enumerate((silent, silent, idle), 1):
        planner.look(sight(beats))
        said.append(planner.round(sight(beats), {GATEWAY: counted(90.0 * number)}, 10.0 * number).troubles)
    assert "heartbeats have not told decode.step_ms yet" in said[1][0]
    assert said[2] == ()


def test_without_a_profile_the_speed_is_that_of_heartbeats() -> None:
    planner = FleetPlanner(SETTINGS, None, 0.0, 2)
    room: dict[str, Any] = {"kv_blocks": 4096, "most_threads": 1, "sent_unix_us": 5}
    beats = [
        beat("gateway", metrics="127.0.0.1:1"),
        beat("tokenizer"),
        beat("prefill", tokens_per_s=1500.0, **room),
        beat("decode", live=1, capacity=16, step_us=12_000, **room),
    ]
    planner.round(sight(beats), {GATEWAY: counted(0.0)}, 10.0)
    lacking = planner.round(sight(beats), {GATEWAY: counted(90.0)}, 20.0)
    planner.look(sight(beats))
    known = planner.round(sight(beats), {GATEWAY: counted(180.0)}, 30.0)
    assert lacking.troubles == (
        "large: the speed of its workers is not known: no heartbeat of its workers was heard",
    )
    assert known.troubles == ()
    assert known.targets["large"]["prefill"] > 1
