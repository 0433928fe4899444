"""A route costs what waits, what is computed, and its hops between regions, in seconds."""

from __future__ import annotations

import pytest

from services.gateway.fleet.best_route import BestRoute
from services.gateway.fleet.known_prefixes import DEFAULT_PREFILL_TOKENS_PER_S, KnownPrefix
from services.gateway.fleet.routing import Need, RoutingDecision
from services.gateway.fleet.sent_load import LoadedView
from services.gateway.regions.round_trips import RoundTrips
from services.gateway.regions.route_cost import (
    FULL_S,
    KindRates,
    RouteCost,
    is_kv_sooner,
    kv_bytes,
    route_cost,
    view_of,
)
from services.gateway.regions.ways import Ways
from shared.bus.fleet import InstanceView
from tests.integration.gateway_peers import heartbeat

NEED = Need((), tokens=1000, output_tokens=16)
RATE = 10_000.0
BLOCK_BYTES = 1 << 20
NOTHING = KnownPrefix(0)


def view(role: str, region: str, **fields: object) -> InstanceView:
    measured = {"best_tokens_per_s": RATE, "kv_block_bytes": BLOCK_BYTES, **fields}
    return InstanceView(heartbeat(role, f"{role}-{region}", region=region, **measured), 0.0)


@pytest.fixture
def ways() -> Ways:
    trips = RoundTrips()
    trips.record("us", 0.030)
    return Ways("eu", trips)


def cost(ways: Ways, prefill: str, decode: str, detokenizer: str, **fields: object) -> RouteCost:
    """The cost of a route with a role in each of these regions; "" for a prompt that decode computes."""
    fleet = {
        "prefill": [view("prefill", region, **fields) for region in ("eu", "us")],
        "decode": [view("decode", region, prompt_tokens_per_s=RATE / 2) for region in ("eu", "us")],
        "detokenizer": [view("detokenizer", region) for region in ("eu", "us")],
    }
    route = RoutingDecision(
        f"decode-{decode}", f"prefill-{prefill}" if prefill else "", f"detokenizer-{detokenizer}", ""
    )
    return cost_of(route, fleet, ways)


def cost_of(
    route: RoutingDecision, fleet: dict[str, list[InstanceView]], ways: Ways, prefix: KnownPrefix = NOTHING
) -> RouteCost:
    found = view_of(fleet, route.prompt_role, route.instance_of(route.prompt_role))
    worker = LoadedView(InstanceView(found.heartbeat, 0.0), found.heartbeat)
    return route_cost(BestRoute(route, worker, prefix), fleet, NEED, ways, KindRates(fleet))


def test_a_near_route_costs_what_is_queued_and_computed(ways: Ways) -> None:
    assert cost(ways, "eu", "eu", "eu") == RouteCost(0.0, 0.1, 0.0)
    assert cost(ways, "eu", "eu", "eu", queued_tokens=5000) == RouteCost(0.5, 0.6, 0.0)


def test_what_is_cached_or_fetched_costs_no_computing_and_is_waited_for(ways: Ways) -> None:
    fleet = {role: [view(role, "eu")] for role in ("prefill", "decode", "detokenizer")}
    route = RoutingDecision("decode-eu", "prefill-eu", "detokenizer-eu", "")
    known = cost_of(route, fleet, ways, KnownPrefix(50, ready_s=0.05))
    assert known.waits_s == 0.05
    assert known.first_token_s == pytest.approx(0.07)


def test_a_far_route_costs_one_round_trip_more(ways: Ways) -> None:
    far = cost(ways, "us", "us", "us")
    assert far.first_token_s == pytest.approx(0.130)
    assert far.second_token_s == 0.0


def test_tokens_that_cross_twice_cost_that(ways: Ways) -> None:
    assert cost(ways, "eu", "eu", "us").first_token_s == pytest.approx(0.130)
    assert cost(ways, "eu", "eu", "us").seconds == pytest.approx(0.145)


def test_kv_of_another_region_makes_the_second_token_late(ways: Ways) -> None:
    split = cost(ways, "eu", "us", "us")
    blocks = 63
    assert kv_bytes(view("prefill", "eu"), NEED.tokens) == blocks * BLOCK_BYTES
    assert split.second_token_s == pytest.approx(ways.kv_s("eu", "us", blocks * BLOCK_BYTES))
    assert split.seconds > cost(ways, "us", "us", "us").seconds


def test_a_full_decode_worker_costs_more_than_any_way(ways: Ways) -> None:
    fleet = {
        "prefill": [view("prefill", "eu")],
        "decode": [view("decode", "eu", live=8)],
        "detokenizer": [view("detokenizer", "eu")],
    }
    route = RoutingDecision("decode-eu", "prefill-eu", "detokenizer-eu", "")
    assert cost_of(route, fleet, ways).waits_s == FULL_S


def test_workers_that_are_alike_are_taken_to_be_as_fast_whatever_they_have_had_lately() -> None:
    cold = view("decode", "eu", prompt_tokens_per_s=RATE / 9)
    others = [view("prefill", "us"), view("prefill", "eu", backend="cuda", best_tokens_per_s=9 * RATE)]
    rates = KindRates({"decode": [cold], "prefill": others})
    assert [rates.of(each) for each in (cold, *others)] == [RATE, RATE, 9 * RATE]


def test_a_kind_of_worker_that_nobody_has_measured_is_given_a_chance() -> None:
    new = view("prefill", "eu", backend="cuda", best_tokens_per_s=0.0)
    assert KindRates({"prefill": [new, view("prefill", "us")]}).of(new) == RATE
    assert KindRates({"prefill": [new]}).of(new) == DEFAULT_PREFILL_TOKENS_PER_S


@pytest.mark.parametrize(
    ("round_trip_s", "rate", "sooner"), [(0.001, 2000.0, True), (0.030, 2000.0, False), (0.030, 200.0, True)]
)
def test_kv_is_sent_to_another_region_only_where_that_is_sooner_than_to_compute_it(
    round_trip_s: float, rate: float, *, sooner: bool
) -> None:
    trips = RoundTrips()
    trips.record("us", round_trip_s)
    sender, taker = view("decode", "eu"), view("decode", "us", prompt_tokens_per_s=rate)
    assert is_kv_sooner(sender, taker, 1000, Ways("eu", trips), KindRates({"decode": [taker]})) is sooner


def test_kv_of_unknown_size_is_not_sent_to_another_region(ways: Ways) -> None:
    sender, taker = view("decode", "eu", kv_block_bytes=0), view("decode", "us", prompt_tokens_per_s=1.0)
    rates = KindRates({"decode": [taker]})
    assert not is_kv_sooner(sender, taker, 1000, ways, rates)
    assert is_kv_sooner(sender, view("decode", "eu"), 1000, ways, rates)
