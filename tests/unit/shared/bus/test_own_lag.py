"""Our own lag is remembered for as long as it can explain a silence."""

from __future__ import annotations

import pytest

from shared.bus.own_lag import LEAST_S, REMEMBERED, OwnLag
from tests.support.clock import FakeClock


def test_lags_add_up_as_far_as_they_are_within_the_time_asked_for() -> None:
    clock = FakeClock()
    lag = OwnLag(clock)
    lag.note(0.5)
    clock.advance(2.0)
    lag.note(1.5)
    assert lag.within_s(10.0) == pytest.approx(2.0)
    assert lag.within_s(2.0) == pytest.approx(1.5)
    assert lag.within_s(1.0) == pytest.approx(1.0)


def test_what_every_loop_is_late_is_no_lag() -> None:
    lag = OwnLag(FakeClock())
    lag.note(LEAST_S - 0.001)
    assert lag.within_s(10.0) == 0.0


def test_a_bounded_number_of_lags_is_remembered() -> None:
    lag = OwnLag(FakeClock())
    for _ in range(REMEMBERED + 10):
        lag.note(1.0)
    assert lag.within_s(1e9) == REMEMBERED
