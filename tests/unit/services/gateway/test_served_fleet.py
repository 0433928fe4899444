"""What the fleet serves is found once, and anew when an announcement changes."""

from __future__ import annotations

import pytest

from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.served_fleet import MAX_KNOWN, ServedFleet
from shared.bus.fleet_state import FleetState, InstanceView
from shared.errors import NotFound
from shared.messages import Heartbeat
from tests.support.clock import FakeClock
from tests.support.heartbeats import heartbeat_with, make_heartbeat

MODEL = ModelIdentity("m")


class CountingFleet(FleetState):
    """Counts how often it is asked for its instances."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.looks = 0

    def instances(self, role: str) -> list[InstanceView]:
        self.looks += 1
        return super().instances(role)


def beat(instance: str, role: str = "decode", **fields: object) -> Heartbeat:
    blank = make_heartbeat(role, instance, host="h", pid=1, model="m", layout="usual", capacity=8)
    return heartbeat_with(blank, **fields)


@pytest.fixture
def fleet() -> CountingFleet:
    fleet = CountingFleet()
    fleet.observe(beat("decode-0", context_tokens=100))
    fleet.observe(beat("prefill-0", "prefill", context_tokens=80))
    return fleet


def test_a_heartbeat_about_work_alone_changes_no_answer(fleet: CountingFleet) -> None:
    served = ServedFleet(fleet)
    assert served.find_model("", "") == MODEL
    assert served.longest_context(MODEL) == 80
    looks = fleet.looks
    fleet.observe(beat("decode-0", context_tokens=100, live=3, queued=2))
    assert served.find_model("", "") == MODEL
    assert served.longest_context(MODEL) == 80
    assert fleet.looks == looks


def test_another_announcement_is_heard_at_once(fleet: CountingFleet) -> None:
    served = ServedFleet(fleet)
    assert served.longest_context(MODEL) == 80
    fleet.observe(beat("prefill-0", "prefill", context_tokens=60))
    assert served.longest_context(MODEL) == 60
    fleet.observe(beat("decode-0", state="draining"))
    assert served.waits_for_worker("m")


def test_who_comes_and_goes_changes_who_serves(fleet: CountingFleet) -> None:
    served = ServedFleet(fleet)
    assert [view.heartbeat.instance for view in served.serving("decode", MODEL)] == ["decode-0"]
    fleet.observe(beat("decode-1"))
    assert len(served.serving("decode", MODEL)) == 2
    fleet.observe(beat("decode-0", state="stopped"))
    assert [view.heartbeat.instance for view in served.serving("decode", MODEL)] == ["decode-1"]


def test_a_prompt_is_named_for_the_layout_that_most_workers_of_its_model_have() -> None:
    fleet = CountingFleet()
    served = ServedFleet(fleet)
    for number in range(3):
        fleet.observe(beat(f"other-{number}", model="another", layout="elsewhere"))
    assert served.usual_layout(MODEL) == ""
    fleet.observe(beat("decode-0", layout="rare"))
    assert served.usual_layout(MODEL) == "rare"
    for number in (1, 2):
        fleet.observe(beat(f"decode-{number}"))
    assert served.usual_layout(MODEL) == "usual"


def test_a_model_that_is_not_served_is_looked_for_each_time(fleet: CountingFleet) -> None:
    served = ServedFleet(fleet)
    with pytest.raises(NotFound):
        served.find_model("another", "")
    fleet.observe(beat("decode-1", model="another"))
    assert served.find_model("another", "").name == "another"


def test_names_that_clients_make_up_push_out_all_answers_at_the_bound(fleet: CountingFleet) -> None:
    served = ServedFleet(fleet)
    served.longest_context(MODEL)
    for number in range(MAX_KNOWN - 1):
        served.waits_for_worker(f"made-up-{number}")
    looks = fleet.looks
    served.waits_for_worker("one more")
    served.longest_context(MODEL)
    assert fleet.looks > looks + 2
