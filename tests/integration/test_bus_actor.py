"""An actor on the bus: what every service answers the same way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shared.actor import ActorRef, BusActor, Supervisor, receiver
from shared.bus import Bus, Delivery
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import InternalError, InvalidRequest, Overloaded
from shared.messages import (
    Accepted,
    AuditReport,
    AuditRequest,
    Cancel,
    Drain,
    Envelope,
    Held,
    Retrieve,
    Snapshot,
    SnapshotRequest,
    Warm,
)
from tests.support import metric
from tests.support.wait import until

DECODE = inbox("decode", "decode-0")
HELD = Held("gateway-0.1", "kv_blocks", 4, "decoding")


class Process:
    """What a BusActor needs of the process it lives in."""

    role = "decode"
    instance = "decode-0"
    incarnation = 17

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.draining = False
        self.reached = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.handled: list[Any] = []

    def begin_drain(self, patience_s: int = 0) -> None:
        self.draining = True
        self.patience_s = patience_s


class Worker(BusActor):
    """Retrieve is answered, refused or crashed over by its query; Cancel is noted."""

    def __init__(self, process: Process) -> None:
        super().__init__("worker", process, mailbox_limit=4)
        self.process = process

    async def on_message(self, delivery: Delivery) -> None:
        self.process.reached = True
        await self.process.gate.wait()
        self.process.handled.append(delivery.message)
        match delivery.message:
            case Retrieve(query="bad"):
                raise InvalidRequest("not like this")
            case Retrieve(query="bug"):
                raise ZeroDivisionError
            case Retrieve():
                await self.bus.reply(delivery.envelope, Accepted(1))

    def held(self) -> list[Held]:
        return [HELD]


@pytest.fixture
async def process(nats_url: str) -> AsyncIterator[Process]:
    bus = await Bus.connect(nats_url, name="decode-0")
    yield Process(bus)
    await bus.close()


@pytest.fixture
async def worker(process: Process) -> AsyncIterator[ActorRef[Worker]]:
    supervisor = Supervisor()
    ref = supervisor.start(lambda: Worker(process))
    await process.bus.serve(DECODE, receiver(ref))
    yield ref
    process.gate.set()
    await supervisor.stop()


@pytest.fixture
async def bus(nats_url: str, worker: ActorRef[Worker]) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_url, name="asker")
    yield bus
    await bus.close()


async def ask(bus: Bus, message: Any) -> Any:
    return await bus.ask(DECODE, message, Envelope("gateway-0.1"), Deadline.after(60))


async def test_an_audit_is_answered_with_what_is_held(bus: Bus) -> None:
    assert await ask(bus, AuditRequest()) == AuditReport("decode", "decode-0", 17, (HELD,))


async def test_a_service_without_a_prefix_cache_has_an_empty_snapshot(bus: Bus) -> None:
    assert await ask(bus, SnapshotRequest()) == Snapshot(0, b"")


async def test_a_drain_reaches_the_process(bus: Bus, process: Process) -> None:
    assert await ask(bus, Drain(patience_s=7)) == Accepted()
    assert (process.draining, process.patience_s) == (True, 7)


async def test_a_typed_error_is_an_answer_and_no_crash(bus: Bus, worker: ActorRef[Worker]) -> None:
    actor = worker.living
    with pytest.raises(InvalidRequest) as caught:
        await ask(bus, Retrieve("bad", 1, False))
    assert caught.value.hop == "decode"
    assert await ask(bus, Retrieve("good", 1, False)) == Accepted(1)
    assert worker.living is actor


async def test_a_crash_answers_the_asker_and_those_who_wait_before_the_restart(
    bus: Bus, process: Process, worker: ActorRef[Worker]
) -> None:
    actor = worker.living
    process.gate.clear()
    asks = [asyncio.create_task(ask(bus, Retrieve(query, 1, False))) for query in ("bug", "good")]
    await until(lambda: process.reached and actor.queued == 1)
    process.gate.set()
    for result in await asyncio.gather(*asks, return_exceptions=True):
        assert isinstance(result, InternalError)
    assert await ask(bus, Retrieve("good", 1, False)) == Accepted(1)
    assert worker.living is not actor


async def test_a_full_mailbox_is_answered_and_control_messages_still_get_through(
    bus: Bus, process: Process, worker: ActorRef[Worker]
) -> None:
    process.gate.clear()
    asks = [asyncio.create_task(ask(bus, Retrieve("good", 1, False)))]
    await until(lambda: process.reached)
    asks += [asyncio.create_task(ask(bus, Retrieve("good", 1, False))) for _ in range(4)]
    await until(lambda: worker.living.queued == 4)
    with pytest.raises(Overloaded) as caught:
        await ask(bus, Retrieve("one too many", 1, False))
    assert caught.value.retry_after_ms > 0
    await bus.publish(DECODE, Cancel("cancelled"))
    await until(lambda: worker.living.queued == 5)
    process.gate.set()
    await asyncio.gather(*asks)
    assert process.handled[1] == Cancel("cancelled")


async def test_a_full_mailbox_counts_what_nobody_waits_for(
    bus: Bus, process: Process, worker: ActorRef[Worker]
) -> None:
    before = metric.value("penstock_dropped_messages_total", reason="overloaded")
    process.gate.clear()
    for _ in range(8):
        await bus.publish(DECODE, Warm(b"", b"", "gateway-0"))
    await until(lambda: metric.value("penstock_dropped_messages_total", reason="overloaded") > before)
    process.gate.set()
