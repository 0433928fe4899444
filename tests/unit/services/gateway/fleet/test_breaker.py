"""A breaker opens after failures in a row, tries again with one probe, and waits longer each time."""

from __future__ import annotations

import pytest

from services.gateway.fleet.breaker import (
    FAILURES,
    FIRST_OPEN_S,
    MAX_OPEN_S,
    PROBE_S,
    STALE_S,
    WINDOW_S,
    Breaker,
    BreakerState,
)
from tests.support.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def breaker(clock: FakeClock) -> Breaker:
    return Breaker(clock)


def fail(breaker: Breaker, times: int = FAILURES) -> Breaker:
    for number in range(times):
        breaker.fail(f"r{number}")
    return breaker


def half_open(breaker: Breaker, clock: FakeClock) -> None:
    fail(breaker)
    clock.advance(FIRST_OPEN_S)


def test_it_opens_at_the_last_of_several_failures_and_not_before(breaker: Breaker) -> None:
    fail(breaker, FAILURES - 1)
    assert (breaker.state, breaker.takes("a")) == (BreakerState.CLOSED, True)
    breaker.fail("last")
    assert (breaker.state, breaker.takes("a")) == (BreakerState.OPEN, False)


def test_a_request_that_fails_again_and_again_counts_once(breaker: Breaker) -> None:
    for _ in range(10 * FAILURES):
        breaker.fail("one")
    assert breaker.state is BreakerState.CLOSED


def test_a_request_that_ended_well_makes_up_for_one_failure(breaker: Breaker) -> None:
    fail(breaker, FAILURES - 1)
    breaker.make_up()
    breaker.fail("later")
    assert breaker.takes("a")
    breaker.fail("last")
    assert not breaker.takes("a")


def test_failures_further_apart_than_the_window_do_not_add_up(breaker: Breaker, clock: FakeClock) -> None:
    fail(breaker, FAILURES - 1)
    clock.advance(WINDOW_S)
    assert breaker.idle
    breaker.fail("later")
    assert breaker.state is BreakerState.CLOSED


def test_when_its_time_is_up_exactly_one_request_may_try(breaker: Breaker, clock: FakeClock) -> None:
    fail(breaker)
    clock.advance(FIRST_OPEN_S - 0.01)
    assert not breaker.takes("a")
    clock.advance(0.01)
    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.takes("a")
    breaker.begin("a")
    assert (breaker.takes("a"), breaker.takes("b")) == (True, False)


def test_a_probe_that_succeeds_closes_it(breaker: Breaker, clock: FakeClock) -> None:
    half_open(breaker, clock)
    breaker.begin("a")
    breaker.succeed(clock.monotonic_s())
    assert (breaker.state, breaker.takes("b"), breaker.idle) == (BreakerState.CLOSED, True, True)


def test_a_probe_that_fails_opens_it_for_twice_as_long_up_to_a_bound(
    breaker: Breaker, clock: FakeClock
) -> None:
    half_open(breaker, clock)
    open_for_s = FIRST_OPEN_S
    for _ in range(8):
        breaker.begin("probe")
        breaker.fail("probe")
        open_for_s = min(2 * open_for_s, MAX_OPEN_S)
        clock.advance(open_for_s - 0.01)
        before = breaker.state
        clock.advance(0.01)
        assert (before, breaker.state) == (BreakerState.OPEN, BreakerState.HALF_OPEN)
    assert open_for_s == MAX_OPEN_S


def test_a_probe_that_ended_without_telling_makes_room_for_another(
    breaker: Breaker, clock: FakeClock
) -> None:
    half_open(breaker, clock)
    breaker.begin("a")
    breaker.drop("b")
    assert not breaker.takes("b")
    breaker.drop("a")
    assert breaker.takes("b")


def test_a_probe_that_never_tells_is_waited_for_no_longer_than_its_bound(
    breaker: Breaker, clock: FakeClock
) -> None:
    half_open(breaker, clock)
    breaker.begin("a")
    clock.advance(PROBE_S - 0.01)
    assert not breaker.takes("b")
    clock.advance(0.01)
    assert breaker.takes("b")


def test_only_the_probe_can_open_it_again(breaker: Breaker, clock: FakeClock) -> None:
    half_open(breaker, clock)
    breaker.begin("a")
    breaker.fail("an older one")
    assert breaker.state is BreakerState.HALF_OPEN


def test_success_of_what_began_before_it_opened_does_not_close_it(breaker: Breaker, clock: FakeClock) -> None:
    began_s = clock.monotonic_s()
    clock.advance(0.1)
    fail(breaker)
    breaker.succeed(began_s)
    assert breaker.state is BreakerState.OPEN


def test_success_of_what_was_sent_there_although_it_was_open_closes_it(
    breaker: Breaker, clock: FakeClock
) -> None:
    fail(breaker)
    clock.advance(0.1)
    breaker.succeed(clock.monotonic_s())
    assert breaker.state is BreakerState.CLOSED


def test_what_nobody_has_tried_for_long_is_forgotten(breaker: Breaker, clock: FakeClock) -> None:
    half_open(breaker, clock)
    clock.advance(STALE_S - 0.01)
    assert breaker.state is BreakerState.HALF_OPEN
    clock.advance(0.01)
    assert breaker.idle
