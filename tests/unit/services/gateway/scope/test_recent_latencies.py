"""Slots of the last minutes: what falls out of them, and how near percentiles are to the truth."""

from __future__ import annotations

import random

import pytest

from services.gateway.scope.recent_latencies import (
    BINS_PER_OCTAVE,
    MAX_BIN,
    SLOT_S,
    SLOTS,
    Percentiles,
    RecentLatencies,
)
from tests.support.clock import FakeClock


def test_percentiles_are_within_a_bin_of_the_true_ones() -> None:
    clock, rng = FakeClock(), random.Random(7)
    latencies = RecentLatencies(clock)
    times_us = sorted(int(10 ** rng.uniform(1, 7)) for _ in range(2000))
    for time_us in rng.sample(times_us, len(times_us)):
        latencies.record_end("finished", time_us)
    found = Percentiles.of(slot.ttft for slot in latencies.slots())
    assert found.count == len(times_us)
    for share, told_ms in ((0.5, found.p50_ms), (0.95, found.p95_ms), (0.99, found.p99_ms)):
        true_ms = times_us[int(len(times_us) * share) - 1] / 1000
        assert told_ms == pytest.approx(true_ms, rel=2 ** (1 / BINS_PER_OCTAVE) - 1)


def test_there_is_a_slot_for_every_few_seconds_and_what_is_older_is_gone() -> None:
    clock = FakeClock()
    latencies = RecentLatencies(clock)
    latencies.record_end("shed", None)
    latencies.record_delivery(3, None, clock.monotonic_s())
    clock.advance(SLOT_S * (SLOTS - 1))
    latencies.record_delivery(5, 0.010, clock.monotonic_s())
    slots = latencies.slots()
    assert len(slots) == SLOTS
    assert (slots[0].tokens, slots[0].outcomes["shed"], slots[-1].tokens) == (3, 1, 5)
    assert sum(slot.inter_token.total() for slot in slots) == 1
    clock.advance(SLOT_S)
    assert sum(slot.tokens for slot in latencies.slots()) == 5
    clock.advance(SLOT_S * SLOTS)
    assert sum(slot.tokens for slot in latencies.slots()) == 0


def test_a_time_without_end_and_one_below_a_microsecond_have_a_bin() -> None:
    latencies = RecentLatencies(FakeClock())
    latencies.record_end("finished", 0)
    latencies.record_end("finished", 10**18)
    (slot,) = [slot for slot in latencies.slots() if slot.ttft]
    assert sorted(slot.ttft) == [0, MAX_BIN]


def test_nothing_has_no_percentiles() -> None:
    assert Percentiles.of([]) == Percentiles(0, 0.0, 0.0, 0.0)
