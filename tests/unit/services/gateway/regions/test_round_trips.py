"""The distance of a region is the least of what the latest messages took."""

from __future__ import annotations

from services.gateway.regions.round_trips import MAX_REGIONS, SAMPLES, UNMEASURED_S, RoundTrips


def test_a_region_that_nobody_has_measured_is_far_away() -> None:
    trips = RoundTrips()
    assert trips.seconds("us") == UNMEASURED_S
    assert not trips.is_measured("us")


def test_a_queue_or_a_lost_packet_adds_no_distance() -> None:
    trips = RoundTrips()
    for seconds in (0.25, 0.031, 0.9):
        trips.record("us", seconds)
    assert trips.seconds("us") == 0.031


def test_a_way_that_has_become_longer_is_known_after_a_few_messages() -> None:
    trips = RoundTrips()
    trips.record("us", 0.03)
    for _ in range(SAMPLES):
        trips.record("us", 0.12)
    assert trips.seconds("us") == 0.12


def test_a_forgotten_region_is_one_that_nobody_has_measured() -> None:
    trips = RoundTrips()
    trips.record("us", 0.03)
    trips.forget("us")
    assert trips.seconds("us") == UNMEASURED_S


def test_regions_beyond_the_limit_are_not_measured() -> None:
    trips = RoundTrips()
    for number in range(MAX_REGIONS + 1):
        trips.record(f"region-{number}", 0.01)
    assert len(trips.measured) == MAX_REGIONS
    assert not trips.is_measured(f"region-{MAX_REGIONS}")
