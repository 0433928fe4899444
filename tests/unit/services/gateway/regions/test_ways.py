"""Hops and transfers between regions take the time that round trips say."""

from __future__ import annotations

import pytest

from services.gateway.regions.round_trips import RoundTrips
from services.gateway.regions.ways import MOST_LINK_BYTES_PER_S, Ways
from shared.kv.limits import FIRST_WINDOW_BYTES, WINDOW_BYTES


@pytest.fixture
def ways() -> Ways:
    trips = RoundTrips()
    trips.record("us", 0.030)
    trips.record("ap", 0.120)
    return Ways("eu", trips)


def test_a_hop_is_half_a_round_trip_and_none_within_a_region(ways: Ways) -> None:
    assert ways.way_s("eu", "us") == ways.way_s("us", "eu") == 0.015
    assert ways.way_s("us", "us") == 0.0


def test_a_hop_between_two_others_is_as_long_as_that_through_here(ways: Ways) -> None:
    assert ways.way_s("us", "ap") == pytest.approx(0.075)


def test_kv_goes_one_window_a_round_trip_after_the_grant_and_the_first_window(ways: Ways) -> None:
    assert ways.kv_s("eu", "us", FIRST_WINDOW_BYTES) == pytest.approx(0.060)
    assert ways.kv_s("eu", "us", FIRST_WINDOW_BYTES + 10 * WINDOW_BYTES) == pytest.approx(0.360)
    assert ways.kv_s("us", "us", 1 << 30) == 0.0


def test_kv_is_no_faster_than_the_bus_however_near_it_goes() -> None:
    trips = RoundTrips()
    trips.record("us", 0.0001)
    seconds = Ways("eu", trips).kv_s("eu", "us", 1 << 30)
    assert seconds == pytest.approx((1 << 30) / MOST_LINK_BYTES_PER_S, rel=0.01)
