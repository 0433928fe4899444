"""Routes stay in the gateway's region, and go elsewhere as a whole where that is needed or notably better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from services.gateway.fleet.best_route import BestRoute, best_route
from services.gateway.fleet.routing import Need, RoutingDecision
from services.gateway.fleet.sent_load import SentLoad
from services.gateway.regions.home import DEADLINE, FULL, NO_INSTANCE, SOONER, Home
from services.gateway.regions.region_routing import UNNAMED, RegionRouting
from services.gateway.regions.round_trips import RoundTrips
from services.gateway.regions.ways import Ways
from shared.bus.fleet import InstanceView
from shared.errors import Unavailable
from tests.integration.gateway_peers import heartbeat
from tests.support.block_hashes import hashes_of
from tests.support.clock import FakeClock

ROLES = ("prefill", "decode", "detokenizer", "speculator")
TOKENS = 320
NEED = Need(tuple(hashes_of(range(TOKENS))), tokens=TOKENS, output_tokens=16)
RATE = 3200.0
ROUND_TRIPS_S = {"us": 0.030, "ap": 0.120}

Fleet = dict[str, list[InstanceView]]


def view(role: str, region: str, **fields: object) -> InstanceView:
    measured = {"best_tokens_per_s": RATE, "tokens_per_s": RATE, "kv_block_bytes": 1 << 16, **fields}
    return InstanceView(heartbeat(role, f"{role}-{region}", region=region, **measured), 0.0)


def fleet_in(*regions: str) -> Fleet:
    return {role: [view(role, region) for region in regions] for role in ROLES}


def changed(fleet: Fleet, role: str, region: str, **fields: object) -> Fleet:
    return {
        **fleet,
        role: [v for v in fleet[role] if v.heartbeat.region != region] + [view(role, region, **fields)],
    }


def without(fleet: Fleet, role: str, region: str) -> Fleet:
    return {**fleet, role: [view for view in fleet[role] if view.heartbeat.region != region]}


def routed(
    fleet: Mapping[str, Sequence[InstanceView]],
    need: Need = NEED,
    *,
    left_s: float = math.inf,
    zone: str = "",
    most_local_tokens: int = 0,
    own: str = "eu",
) -> RoutingDecision:
    return best(fleet, need, left_s=left_s, zone=zone, most_local_tokens=most_local_tokens, own=own).decision


def best(
    fleet: Mapping[str, Sequence[InstanceView]],
    need: Need = NEED,
    *,
    left_s: float = math.inf,
    zone: str = "",
    most_local_tokens: int = 0,
    own: str = "eu",
) -> BestRoute:
    trips = RoundTrips()
    for region, seconds in ROUND_TRIPS_S.items():
        trips.record(region, seconds)
    routing = RegionRouting(Ways(own, trips), Home(FakeClock()), zone, left_s, most_local_tokens > 0)
    return best_route(
        {role: views for role, views in fleet.items() if role != "speculator"},
        fleet["speculator"],
        need,
        sent_load=SentLoad(FakeClock()),
        most_local_tokens=most_local_tokens,
        rotation=0,
        by_place=routing,
    )


def regions_of(route: RoutingDecision) -> set[str]:
    return {instance.partition("-")[2] for _, instance in route.instances}


def test_all_of_a_route_is_near_while_that_is_in_order() -> None:
    route = routed(fleet_in("us", "eu", "ap"))
    assert regions_of(route) == {"eu"}
    assert (route.region, route.why_there) == ("", "")


@pytest.mark.parametrize("role", ["prefill", "decode", "detokenizer"])
def test_a_near_region_without_one_of_the_roles_is_left_with_the_whole_route(role: str) -> None:
    route = routed(without(fleet_in("us", "eu", "ap"), role, "eu"))
    assert regions_of(route) == {"us"}
    assert (route.region, route.why_there) == ("us", NO_INSTANCE)


def test_a_shunned_instance_that_is_alone_in_its_region_is_left_for_another_region() -> None:
    fleet = fleet_in("eu", "us")
    trips = RoundTrips()
    best = best_route(
        {role: views for role, views in fleet.items() if role != "speculator"},
        (),
        NEED,
        {("decode", "decode-eu")},
        sent_load=SentLoad(FakeClock()),
        most_local_tokens=0,
        rotation=0,
        by_place=RegionRouting(Ways("eu", trips), Home(FakeClock()), "", math.inf, False),
    )
    assert regions_of(best.decision) == {"us"}


def test_a_near_queue_is_left_for_a_region_that_is_notably_sooner() -> None:
    short = changed(fleet_in("eu", "us"), "prefill", "eu", queued_tokens=100)
    assert regions_of(routed(short)) == {"eu"}
    long = changed(fleet_in("eu", "us"), "prefill", "eu", queued_tokens=3200)
    assert (regions_of(routed(long)), routed(long).why_there) == ({"us"}, SOONER)


def test_a_full_near_region_is_left_for_one_with_room() -> None:
    route = routed(changed(fleet_in("eu", "us"), "decode", "eu", live=8))
    assert (regions_of(route), route.why_there) == ({"us"}, FULL)


def test_a_deadline_that_the_near_region_would_miss_sends_the_request_where_it_is_kept() -> None:
    fleet = changed(fleet_in("eu", "us"), "prefill", "eu", queued_tokens=200)
    assert regions_of(routed(fleet, left_s=1.0)) == {"eu"}
    late = routed(fleet, left_s=0.15)
    assert (regions_of(late), late.why_there) == ({"us"}, DEADLINE)


def test_a_session_stays_where_its_prefix_is_if_to_compute_it_here_takes_notably_longer() -> None:
    need = replace(NEED, tokens=TOKENS + 1)
    for rate, region in ((2 * RATE, "eu"), (RATE, "us")):
        fleet: Fleet = {
            role: [view(role, place, best_tokens_per_s=rate) for place in ("eu", "us")] for role in ROLES
        }
        for role in ("prefill", "decode"):
            fleet[role][1].prefix = set(need.block_hashes)
        assert regions_of(routed(fleet, need)) == {region}


def test_a_prefix_is_not_fetched_from_another_region() -> None:
    fleet = fleet_in("eu", "us")
    fleet["prefill"][1].prefix = set(NEED.block_hashes)
    assert best(fleet).prefix.lender.instance == ""
    beside = view("prefill", "eu")
    beside.heartbeat = replace(beside.heartbeat, instance="prefill-beside", queued=8)
    beside.prefix = set(NEED.block_hashes[:8])
    fleet["prefill"].append(beside)
    assert best(fleet).prefix.blocks == 8


def test_of_regions_that_serve_as_well_the_nearest_one_is_taken() -> None:
    assert regions_of(routed(fleet_in("ap", "us"))) == {"us"}


def test_where_no_region_has_every_role_a_route_is_made_of_several() -> None:
    parts = without(without(fleet_in("eu", "us"), "prefill", "eu"), "decode", "us")
    route = routed(parts)
    assert (route.prefill, route.decode, route.detokenizer) == ("prefill-us", "decode-eu", "detokenizer-eu")
    assert (route.region, route.why_there) == ("us", NO_INSTANCE)


def test_a_prompt_is_computed_where_it_is_decoded_if_its_kv_would_come_later_from_another_region() -> None:
    parts = without(without(fleet_in("eu", "ap"), "prefill", "eu"), "decode", "ap")
    fast = changed(parts, "decode", "eu", prompt_tokens_per_s=RATE)
    assert routed(fast, most_local_tokens=16).prefill == ""
    slow = changed(parts, "decode", "eu", backend="old", prompt_tokens_per_s=RATE / 20)
    assert routed(slow, most_local_tokens=16).prefill == "prefill-ap"
    assert routed(fast).prefill == "prefill-ap", "an operator wants no prompts at decode workers"


def test_drafts_come_from_the_region_that_decodes_or_from_nobody() -> None:
    assert routed(without(fleet_in("eu", "us"), "speculator", "eu")).speculator == ""


def test_workers_of_a_region_whose_kv_is_laid_out_otherwise_make_no_route_there() -> None:
    fleet = changed(fleet_in("eu", "us"), "prefill", "eu", layout="other")
    assert regions_of(routed(fleet)) == {"us"}


def test_a_fleet_without_a_route_is_refused_as_in_one_place() -> None:
    with pytest.raises(Unavailable, match="no decode instance is ready"):
        routed({**fleet_in("eu", "us"), "decode": []})


def test_instances_that_say_no_region_are_those_of_a_region_without_a_name() -> None:
    fleet = without(fleet_in("", "eu"), "decode", "eu")
    assert routed(fleet).region == UNNAMED


def test_among_equals_those_of_the_gateways_zone_work_together() -> None:
    fleet = {
        role: [
            InstanceView(
                heartbeat(role, f"{role}-{zone}", region="eu", zone=zone, best_tokens_per_s=RATE), 0.0
            )
            for zone in ("a", "b")
        ]
        for role in ROLES
    }
    assert regions_of(routed(fleet, zone="b")) == {"b"}
    assert regions_of(routed(fleet, zone="a")) == {"a"}
