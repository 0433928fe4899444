"""The pressure: predicted waits as shares of the budgets that clients give."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from operator import eq

import pytest

from services.gateway.admission.admission_queue import AdmissionQueue
from services.gateway.admission.model_levels import ModelLevels
from services.gateway.admission.pressure import RESTS_AFTER, Pressure, watch_pressure
from services.gateway.admission.ticket import CLASSES, Ticket
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.fleet.routing import Candidate
from services.gateway.fleet.sent_load import LoadedView
from shared.bus.fleet import InstanceView
from shared.deadline import Deadline
from shared.tasks import Tasks, cancel_until_done
from tests.integration.gateway_peers import heartbeat
from tests.support.clock import FakeClock
from tests.support.wait import until

MODEL = ModelIdentity("test-model")


class Fleet:
    """Prefill workers as a test wants them, no slots at decode, and requests that wait for one."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.tasks = Tasks()
        self.queue = AdmissionQueue(lambda _model, _blocks: 0, eq, self.tasks.start, self.clock)
        self.beats = {"decode": [heartbeat("decode", "d")], "prefill": [heartbeat("prefill", "p")]}
        self.pressure = Pressure(self.queue, self.instances)

    def instances(self, role: str) -> list[Candidate]:
        return [LoadedView(InstanceView(beat, 0.0), beat) for beat in self.beats[role]]

    async def wait(self, model: ModelIdentity, *, seconds_per_end: float) -> None:
        ticket = Ticket(
            model, max(CLASSES.values()), Deadline(9e9), blocks=1, arrived_s=0.0, meter=self.queue.meter()
        )

        async def sit() -> None:
            async with self.queue.turn(ticket):
                pass

        self.tasks.start("sit", sit())
        await until(lambda: len(self.queue) > 0)
        self.clock.advance(seconds_per_end)
        self.queue.record_end()


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    yield fleet
    await fleet.tasks.finish(0.0)


async def test_without_a_request_there_is_no_pressure(fleet: Fleet) -> None:
    await fleet.wait(MODEL, seconds_per_end=5.0)
    assert fleet.pressure.of(MODEL) == 0.0


async def test_the_wait_for_decode_counts_by_the_usual_budget(fleet: Fleet) -> None:
    for budget_s in (5.0, 20.0, 60.0):
        fleet.pressure.record_budget("", budget_s)
    await fleet.wait(MODEL, seconds_per_end=5.0)
    assert fleet.pressure.of(MODEL) == pytest.approx(2 * 5.0 / 20.0)


async def test_the_shortest_queue_of_prefill_counts_too(fleet: Fleet) -> None:
    fleet.pressure.record_budget("", 20.0)
    await fleet.wait(MODEL, seconds_per_end=5.0)
    fleet.beats["prefill"] = [
        heartbeat("prefill", "long", queued_tokens=90_000, tokens_per_s=1000.0),
        heartbeat("prefill", "short", queued_tokens=4000, tokens_per_s=1000.0),
    ]
    assert fleet.pressure.of(MODEL) == pytest.approx((2 * 5.0 + 4.0) / 20.0)


async def test_each_model_is_under_its_own_pressure(fleet: Fleet) -> None:
    fleet.pressure.record_budget("", 10.0)
    fleet.beats["decode"] = [heartbeat("decode", "a"), heartbeat("decode", "b", model="other")]
    fleet.beats["prefill"] = [
        heartbeat("prefill", "p"),
        heartbeat("prefill", "q", model="other", queued_tokens=7000, tokens_per_s=1000.0),
    ]
    other = ModelIdentity("other")
    assert fleet.pressure.by_model() == {MODEL: 0.0, other: pytest.approx(0.7)}
    assert fleet.pressure.highest() == fleet.pressure.of(other)


async def test_nothing_is_looked_at_while_nobody_asks(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.admission.pressure.REST_WATCH_S", 0.0)
    looks = 0

    def look() -> dict[ModelIdentity, float]:
        nonlocal looks
        looks += 1
        return {MODEL: 0.0}

    monkeypatch.setattr(fleet.pressure, "by_model", look)
    watching = asyncio.create_task(watch_pressure(fleet.pressure, ModelLevels(), lambda: None))
    try:
        await until(lambda: looks == RESTS_AFTER + 1)
        for _ in range(10 * RESTS_AFTER):
            await asyncio.sleep(0)
        assert looks == RESTS_AFTER + 1
        fleet.pressure.record_budget("", 20.0)
        await until(lambda: looks == 2 * (RESTS_AFTER + 1))
    finally:
        await cancel_until_done(watching)
