"""A gateway knows regions from heartbeats, from answers, and from its own routes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.fleet.routing import Need, RoutingDecision
from services.gateway.regions.regions import MAX_HOMES, MAX_REPORTED, Regions, all_alike, preference
from shared.bus.fleet import FleetView, InstanceView
from shared.messages import AdapterId, RegionReport
from tests.integration.gateway_peers import MODEL, heartbeat
from tests.support.clock import FakeClock
from tests.support.metric import value

IDENTITY = ModelIdentity(MODEL)
ROUND_TRIP = "penstock_region_round_trip_seconds"
ROUTES = "penstock_region_routes_total"


class Known:
    """A fleet view that is told directly, and what gateway-0 in eu makes of it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.fleet = FleetView(self.clock)
        self.regions = Regions("eu", "", self.fleet, self.clock)

    def hear(self, role: str, region: str, **fields: object) -> InstanceView:
        view = self.fleet._state.observe(heartbeat(role, f"{role}-{region}", region=region, **fields))
        assert view is not None
        return view

    def hear_all(self, region: str) -> None:
        for role in ("prefill", "decode", "detokenizer"):
            self.hear(role, region)

    def forget(self, role: str, region: str) -> None:
        self.fleet._state._forget((role, f"{role}-{region}"))


@pytest.fixture
def known() -> Iterator[Known]:
    known = Known()
    yield known
    for view in known.fleet.all():  # the samples that were shown
        known.forget(view.heartbeat.role, view.heartbeat.region)
    known.regions.others()


def test_a_gateway_that_is_told_no_place_knows_of_no_regions() -> None:
    assert Regions.of("", "", FleetView()) is None
    assert Regions.of("eu", "", FleetView()) is not None
    assert Regions.of("", "rack-2", FleetView()) is not None
    assert preference(None) is all_alike


def test_a_region_serves_while_it_has_every_role_that_a_request_is_routed_to(known: Known) -> None:
    known.hear_all("eu")
    assert known.regions.is_whole("eu", IDENTITY)
    assert not known.regions.is_whole("us", IDENTITY)
    assert not known.regions.is_whole("eu", ModelIdentity("another"))
    known.forget("prefill", "eu")
    assert not known.regions.is_whole("eu", IDENTITY)


def test_each_model_has_a_home_of_its_own(known: Known) -> None:
    known.hear_all("eu")

    def is_trusted(name: str) -> bool:
        return known.regions.routing(
            ModelIdentity(name), math.inf, may_compute_at_decode=True
        ).home.is_trusted

    assert is_trusted(MODEL)
    assert not is_trusted("another")


def test_an_adapter_that_a_region_lacks_says_nothing_of_the_region(known: Known) -> None:
    known.hear_all("eu")
    adapted = replace(IDENTITY, adapter=AdapterId("answers", "d1"))
    homes = [
        known.regions.routing(model, 1.0, may_compute_at_decode=True).home for model in (adapted, IDENTITY)
    ]
    assert homes[0] is homes[1]
    assert homes[0].is_trusted


def test_the_homes_that_are_remembered_are_bounded(known: Known) -> None:
    homes = [
        known.regions.routing(ModelIdentity(f"model-{number}"), 1.0, may_compute_at_decode=True).home
        for number in range(MAX_HOMES + 1)
    ]
    first = known.regions.routing(ModelIdentity("model-0"), 1.0, may_compute_at_decode=True).home
    last = known.regions.routing(ModelIdentity(f"model-{MAX_HOMES}"), 1.0, may_compute_at_decode=True).home
    assert first is not homes[0]
    assert last is homes[-1]


def test_answers_of_other_regions_say_how_far_they_are(known: Known) -> None:
    known.hear("decode", "eu")
    known.hear("decode", "us")
    known.regions.record_answer("decode", "decode-eu", 0.002)
    known.regions.record_answer("decode", "decode-us", 0.031)
    known.regions.record_answer("decode", "decode-nobody", 0.5)
    assert known.regions.trips.measured == ("us",)
    assert value(ROUND_TRIP, region="us") == 0.031


def test_a_region_in_which_nobody_decodes_any_more_is_forgotten(known: Known) -> None:
    known.hear("decode", "us")
    known.regions.record_round_trip("us", 0.03)
    assert known.regions.others() == ["us"]
    known.forget("decode", "us")
    assert known.regions.others() == []
    assert value(ROUND_TRIP, region="us") == 0.0
    assert known.regions.trips.measured == ()


def test_a_heartbeat_tells_the_own_region_first_and_how_many_routes_went_where(known: Known) -> None:
    known.hear("decode", "us")
    known.regions.record_round_trip("us", 0.03)
    before = value(ROUTES, region="us", why="sooner")
    for region, why in (("", ""), ("", ""), ("us", "sooner")):
        known.regions.record_route(RoutingDecision("d", "p", "t", "", region, why))
    assert known.regions.report() == (RegionReport("eu", 0, 2), RegionReport("us", 30_000, 1))
    assert value(ROUTES, region="us", why="sooner") == before + 1


def test_a_heartbeat_tells_of_so_many_regions_at_most(known: Known) -> None:
    for number in range(MAX_REPORTED + 1):
        known.regions.record_route(RoutingDecision("d", "p", "t", "", f"region-{number}", "sooner"))
    assert len(known.regions.report()) == MAX_REPORTED


def test_a_stream_moves_to_another_region_only_where_it_cannot_stay(known: Known) -> None:
    sizes = {"kv_block_bytes": 1 << 16, "prompt_tokens_per_s": 100.0}
    leaving, far = known.hear("decode", "eu", **sizes), known.hear("decode", "us", **sizes)
    beside = InstanceView(heartbeat("decode", "decode-beside", region="eu", **sizes), 0.0)
    known.regions.record_round_trip("us", 0.03)
    need = Need((), tokens=400, output_tokens=10)
    assert known.regions.successors([far, beside], leaving, need, stays=True) == [beside]
    assert known.regions.successors([far, beside], leaving, need, stays=False) == [beside, far]
    unknown = known.hear("decode", "eu", kv_block_bytes=0)
    assert known.regions.successors([far, beside], unknown, need, stays=False) == [beside]
