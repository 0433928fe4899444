"""Deadlines: absolute, only shrinking, converted between clocks."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.deadline import (
    MAX_SKEW_US,
    OFFSET_WINDOW,
    ClockOffsets,
    ClockReading,
    Deadline,
)
from shared.errors import DeadlineExpired
from shared.seams.clock import SystemClock
from tests.support.clock import FakeClock


def test_a_deadline_counts_down_and_never_below_zero() -> None:
    clock = FakeClock()
    deadline = Deadline.after(2.0, clock)
    clock.advance(1.5)
    assert deadline.remaining_s(clock) == pytest.approx(0.5)
    assert not deadline.expired(clock)
    clock.advance(1.0)
    assert deadline.remaining_s(clock) == 0.0
    assert deadline.expired(clock)


def test_check_names_the_hop_where_time_ran_out() -> None:
    clock = FakeClock()
    deadline = Deadline.after(1.0, clock)
    deadline.check("prefill", clock)
    clock.advance(1.0)
    with pytest.raises(DeadlineExpired) as caught:
        deadline.check("prefill", clock)
    assert caught.value.hop == "prefill"


def test_a_share_of_the_budget_never_outlives_the_whole() -> None:
    clock = FakeClock()
    deadline = Deadline.after(1.0, clock)
    assert deadline.shrink(0.25, clock).remaining_s(clock) == pytest.approx(0.25)
    assert deadline.shrink(5.0, clock) == deadline


@given(st.integers(-(10**9), 10**9), st.floats(0.001, 3600))
def test_a_deadline_means_the_same_moment_in_two_clocks(offset_us: int, seconds: float) -> None:
    gateway = FakeClock(monotonic_s=50.0)
    worker = FakeClock(monotonic_s=9.0, unix_us=gateway.unix_us() + offset_us)
    wire_us = Deadline.after(seconds, gateway).to_steady_us(0, gateway)
    there = Deadline.from_steady_us(wire_us, offset_us, worker)
    assert there.remaining_s(worker) == pytest.approx(seconds, abs=2e-6)
    assert abs(there.to_steady_us(offset_us, worker) - wire_us) <= 1


@pytest.mark.parametrize("step_s", [120.0, -7.0, -120.0])
def test_no_deadline_moves_when_the_time_of_day_is_set(step_s: float) -> None:
    clock = FakeClock()
    wire_us = Deadline.after(5.0, clock).to_steady_us(0, clock)
    clock.set_on(step_s)
    assert Deadline.from_steady_us(wire_us, 0, clock).remaining_s(clock) == pytest.approx(5.0)


def test_the_steady_clock_of_the_system_goes_on_with_the_monotonic_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SystemClock()
    before = ClockReading.now(clock)
    assert abs(before.set_by_us) < 60_000_000
    an_hour_later_ns = time.monotonic_ns() + 3_600_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    monkeypatch.setattr(time, "monotonic_ns", lambda: an_hour_later_ns)
    later = ClockReading.now(clock)
    assert later.unix_us == 0
    assert later.steady_us - before.steady_us == pytest.approx(3_600_000_000, abs=60_000_000)


async def test_the_timeout_of_an_expired_deadline_fires_at_once() -> None:
    with pytest.raises(TimeoutError):
        async with Deadline.after(-1.0).timeout():
            await asyncio.Event().wait()


def reading(us: int) -> ClockReading:
    """The offset of a clock that was never set."""
    return ClockReading(us, us)


def test_the_fastest_heartbeat_of_a_window_is_the_offset() -> None:
    offsets = ClockOffsets()
    for transit_us in (900, 120, 4000):
        offsets.observe("gateway-0", reading(1_000_000), reading(1_000_000 + 30_000 + transit_us))
    assert offsets.offset_us("gateway-0") == 30_120


def test_an_old_fast_heartbeat_leaves_the_window() -> None:
    offsets = ClockOffsets()
    offsets.observe("gateway-0", reading(0), reading(10))
    for _ in range(OFFSET_WINDOW):
        offsets.observe("gateway-0", reading(0), reading(500))
    assert offsets.offset_us("gateway-0") == 500


def test_an_unheard_gateway_has_no_offset_and_a_forgotten_one_neither() -> None:
    offsets = ClockOffsets()
    offsets.observe("gateway-0", reading(0), reading(70))
    offsets.forget("gateway-0")
    assert offsets.offset_us("gateway-0") == 0
    assert offsets.offset_us("gateway-1") == 0


def test_skewed_names_the_origins_beyond_the_limit_on_either_side() -> None:
    offsets = ClockOffsets()
    offsets.observe("ahead", reading(0), reading(-MAX_SKEW_US - 1))
    offsets.observe("behind", reading(0), reading(MAX_SKEW_US + 1))
    offsets.observe("fine", reading(0), reading(MAX_SKEW_US))
    assert offsets.skewed() == ("ahead", "behind")
