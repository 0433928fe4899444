"""Deadlines as the bus carries them: stamped by one clock, kept by another."""

from __future__ import annotations

import pytest

from shared.deadline import SYSTEM_CLOCK, ClockReading, Deadline
from shared.errors import Overloaded
from shared.messages import Accepted, Envelope, Failure
from tests.support.metric import value
from tests.support.noted_bus import NotedBus

HOUR_US = 3_600_000_000


def reading(us: int) -> ClockReading:
    return ClockReading(us, us)


@pytest.mark.parametrize("ahead_us", [HOUR_US, -HOUR_US], ids=["ahead", "behind"])
def test_a_gateway_whose_clock_is_an_hour_off_leaves_the_same_time(ahead_us: int) -> None:
    bus, now_us = NotedBus(), SYSTEM_CLOCK.steady_us()
    bus.offsets.observe("gateway-0", reading(now_us + ahead_us), reading(now_us))
    deadline = bus.deadline_of(Envelope("r", 1, now_us + ahead_us + 30_000_000, "gateway-0"))
    assert deadline is not None
    assert deadline.remaining_s() == pytest.approx(30.0, abs=5.0)


@pytest.mark.parametrize("ahead_us", [HOUR_US, -HOUR_US], ids=["ahead", "behind"])
def test_a_deadline_goes_back_to_a_gateway_in_that_gateway_s_clock(ahead_us: int) -> None:
    bus, now_us = NotedBus(), SYSTEM_CLOCK.steady_us()
    bus.offsets.observe("gateway-0", reading(now_us + ahead_us), reading(now_us))
    envelope = bus.envelope("r", 1, Deadline.after(30.0), "gateway-0")
    assert envelope.deadline_us == pytest.approx(now_us + ahead_us + 30_000_000, abs=5_000_000)


async def test_what_nobody_waits_for_is_not_answered() -> None:
    bus = NotedBus()
    await bus.answer(Envelope("r", 1), Accepted())
    assert bus.noted.sent == []


async def test_an_error_that_nobody_waits_for_is_counted() -> None:
    bus, before = NotedBus(), value("penstock_dropped_messages_total", reason="overloaded")
    await bus.answer(Envelope("r", 1), Overloaded("full"))
    assert bus.noted.sent == []
    assert value("penstock_dropped_messages_total", reason="overloaded") == before + 1


async def test_an_error_without_a_hop_gets_that_of_who_answers() -> None:
    bus = NotedBus()
    for error in (Overloaded("full"), Overloaded("full", hop="decode")):
        await bus.answer(bus.asked(Accepted(), "r", 1).envelope, error, hop="prefill")
    failures = [sent.message for sent in bus.noted.sent]
    assert [failure.hop for failure in failures if isinstance(failure, Failure)] == ["prefill", "decode"]
