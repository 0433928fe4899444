"""Requests leave their region where it is needed or much better, come home, and do not flap."""

from __future__ import annotations

import math

import pytest

from services.gateway.fleet.best_route import BestRoute
from services.gateway.fleet.known_prefixes import KnownPrefix
from services.gateway.fleet.routing import RoutingDecision
from services.gateway.fleet.sent_load import LoadedView
from services.gateway.regions.home import (
    DEADLINE,
    FULL,
    HOLD,
    HOLD_S,
    HOME,
    MOST_HOLD_S,
    NO_INSTANCE,
    SLOW_HOLD_S,
    SOONER,
    Home,
    RegionRoute,
    is_notably_later,
)
from services.gateway.regions.route_cost import FULL_S, RouteCost
from shared.bus.fleet import InstanceView
from tests.integration.gateway_peers import heartbeat
from tests.support.clock import FakeClock


def route(region: str, seconds: float, *, waits_s: float = 0.0, is_whole: bool = True) -> RegionRoute:
    decision = RoutingDecision(f"decode-{region}", "", f"detokenizer-{region}", "")
    view = InstanceView(heartbeat("decode", decision.decode, region=region), 0.0)
    best = BestRoute(decision, LoadedView(view, view.heartbeat), KnownPrefix(0))
    return RegionRoute(region, best, RouteCost(waits_s, seconds, 0.0), is_whole)


NEAR, FAR = route("eu", 0.02), route("us", 0.05)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def home(clock: FakeClock) -> Home:
    return Home(clock)


def why(home: Home, near: RegionRoute | None, far: RegionRoute | None, left_s: float = math.inf) -> str:
    chosen, told = home.choose(near, far, left_s)
    assert chosen is (near if told == HOME else far)
    return told


def lose(home: Home, clock: FakeClock, seconds: float = 1.0) -> None:
    """The region is gone for so long, and then it is back."""
    home.note_health(is_whole=False)
    clock.advance(seconds)
    home.note_health(is_whole=False)
    home.note_health(is_whole=True)


def test_requests_stay_at_home_where_another_region_is_a_little_sooner(home: Home) -> None:
    assert why(home, NEAR, FAR) == HOME
    assert why(home, route("eu", 0.09), FAR) == HOME


def test_a_region_that_is_notably_sooner_is_taken(home: Home) -> None:
    assert why(home, route("eu", 0.2), FAR) == SOONER


@pytest.mark.parametrize(("seconds", "other_s", "later"), [(1.24, 1.0, False), (1.26, 1.0, True)])
def test_notably_later_is_by_a_share(seconds: float, other_s: float, *, later: bool) -> None:
    assert is_notably_later(seconds, other_s) is later


@pytest.mark.parametrize(("seconds", "later"), [(0.059, False), (0.061, True)])
def test_notably_later_is_by_some_time_too(seconds: float, *, later: bool) -> None:
    assert is_notably_later(seconds, 0.01) is later


def test_a_region_without_an_instance_is_left_at_once(home: Home) -> None:
    home.note_health(is_whole=False)
    assert why(home, None, FAR) == NO_INSTANCE


def test_requests_come_home_when_the_region_has_been_in_order_for_a_while(
    home: Home, clock: FakeClock
) -> None:
    lose(home, clock)
    assert why(home, NEAR, FAR) == HOLD
    clock.advance(HOLD_S - 0.1)
    assert why(home, NEAR, FAR) == HOLD
    clock.advance(0.2)
    assert why(home, NEAR, FAR) == HOME


def test_a_region_that_is_lost_again_and_again_is_trusted_later_each_time(
    home: Home, clock: FakeClock
) -> None:
    changes, before = 0, HOME
    for _ in range(600):
        flickering = clock.monotonic_s() % 2.0 < 1.0
        home.note_health(is_whole=not flickering)
        now = why(home, None if flickering else NEAR, FAR)
        changes += (now == HOME) != (before == HOME)
        before = now
        clock.advance(0.5)
    assert changes == 1, "it flaps"


def test_the_time_for_which_it_is_not_trusted_doubles_up_to_a_limit(home: Home, clock: FakeClock) -> None:
    holds_s = []
    for _ in range(6):
        lose(home, clock)
        began_s = clock.monotonic_s()
        while not home.is_trusted:
            clock.advance(1.0)
        holds_s.append(clock.monotonic_s() - began_s)
    assert holds_s == [5.0, 10.0, 20.0, 40.0, MOST_HOLD_S, MOST_HOLD_S]


def test_a_region_that_is_not_trusted_is_better_than_none(home: Home, clock: FakeClock) -> None:
    lose(home, clock)
    assert why(home, NEAR, None) == HOME
    assert why(home, NEAR, route("us", 0.05, is_whole=False)) == HOME


def test_a_deadline_that_only_another_region_keeps_sends_that_request_there_alone(home: Home) -> None:
    assert why(home, route("eu", 0.09), FAR, left_s=0.06) == DEADLINE
    assert why(home, route("eu", 0.09), FAR) == HOME


def test_a_deadline_that_only_the_own_region_keeps_brings_a_request_home(
    home: Home, clock: FakeClock
) -> None:
    lose(home, clock)
    assert why(home, NEAR, FAR, left_s=0.03) == HOME


def test_who_has_no_room_is_left_for_who_has_some(home: Home) -> None:
    full = route("eu", FULL_S, waits_s=FULL_S)
    assert why(home, full, route("us", FULL_S, waits_s=FULL_S)) == HOME
    assert why(home, full, FAR) == FULL


def test_requests_do_not_come_home_at_the_first_gap_in_a_queue(home: Home, clock: FakeClock) -> None:
    busy = route("eu", 0.2, waits_s=0.18)
    assert why(home, busy, FAR) == SOONER
    clock.advance(SLOW_HOLD_S - 0.1)
    assert why(home, route("eu", 0.04), FAR) == HOLD
    clock.advance(0.2)
    assert why(home, route("eu", 0.04), FAR) == HOME


def test_requests_come_home_at_once_where_the_other_region_is_notably_later(home: Home) -> None:
    assert why(home, route("eu", 0.4, waits_s=0.38), route("us", 0.2)) == SOONER
    assert why(home, NEAR, route("us", 0.2)) == HOME


def test_a_prompt_that_is_cached_far_away_makes_no_other_request_leave(home: Home) -> None:
    assert why(home, route("eu", 0.5), FAR) == SOONER
    assert why(home, route("eu", 0.04), FAR) == HOME
