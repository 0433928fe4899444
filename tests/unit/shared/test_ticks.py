"""Timers that are set for a tick meet there, and none is later than its period."""

from __future__ import annotations

import asyncio

import pytest

from shared.ticks import seconds_to_tick, until_tick
from tests.support.clock import FakeClock


@pytest.mark.parametrize("period_s", [0.25, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("now_s", [1000.0, 1000.001, 1000.2494, 1000.9999, 1001.5, 1001.9990001])
def test_a_tick_is_a_whole_multiple_of_the_period_and_never_further_away(
    period_s: float, now_s: float
) -> None:
    wait_s = seconds_to_tick(period_s, FakeClock(now_s))
    assert 0 < wait_s <= period_s
    tick_s = int(now_s * 1e3) / 1e3 + wait_s  # a loop counts whole milliseconds
    assert tick_s % period_s == pytest.approx(0, abs=1e-9) or tick_s % period_s == pytest.approx(period_s)


def test_at_a_tick_the_next_one_is_a_period_away() -> None:
    assert seconds_to_tick(0.5, FakeClock(1000.5)) == 0.5
    assert seconds_to_tick(0.5, FakeClock(1000.5009)) == 0.5


def test_whoever_begins_when_meets_at_the_same_tick() -> None:
    ends = {
        round(now_s + seconds_to_tick(period_s, FakeClock(now_s)), 6)
        for now_s, period_s in ((1000.1, 1.0), (1000.7, 0.5), (1000.999, 1.0), (999.5, 2.0 - 0.5))
    }
    assert ends <= {1000.5, 1001.0}


def test_what_is_shorter_than_a_millisecond_has_no_ticks() -> None:
    assert seconds_to_tick(0.0004) == 0.0004
    assert seconds_to_tick(0.0) == 0.0
    assert seconds_to_tick(0.001, FakeClock(1000.0)) == 0.001


async def test_a_sleep_ends_at_the_tick() -> None:
    async with asyncio.timeout(10):
        await until_tick(0.01)
