"""What every worker does with its jobs: cancels, lost neighbours, leases, drains, its own end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from services.decode.config import DecodeConfig
from shared import messages
from shared.bus import Bus, Delivery
from shared.deadline import Deadline
from shared.engine import StepResult
from shared.errors import (
    Cancelled,
    DeadlineExpired,
    InternalError,
    InvalidRequest,
    Overloaded,
    PenstockError,
    Unavailable,
)
from shared.messages import Cancel, CancelAck, Envelope, Lost, Message
from shared.process.service import Service
from shared.worker.driver import EngineDriver
from shared.worker.events import InstanceLost
from shared.worker.gateway_leases import GatewayLeases
from shared.worker.job import Job, JobPhase
from shared.worker.job_book import JobBook, WorkerLoad
from shared.worker.prefix_mirror import PrefixMirror
from shared.worker.wire import SequenceSpec
from shared.worker.worker_actor import Transfers, WorkerActor
from tests.support.clock import FakeClock
from tests.support.engine import make_engine
from tests.support.metric import value
from tests.support.sampling import sampling
from tests.support.wait import until

LEASE_S = 10.0
NEWS = InstanceLost("tokenizer", "tokenizer-0", "stopped")
"""A message of no concern to anything here."""


class NotedBus:
    """Notes what is sent."""

    has_room = True

    def __init__(self) -> None:
        self.lost: list[tuple[str, str, Lost]] = []  # subject, request, message
        self.answers: list[Message | PenstockError] = []

    def envelope(self, request_id: str, epoch: int) -> Envelope:
        return Envelope(request_id, epoch)

    async def publish(self, subject: str, message: Message, envelope: Envelope) -> None:
        assert isinstance(message, Lost)
        self.lost.append((subject, envelope.request_id, message))

    async def answer(self, _: Envelope, answer: Message | PenstockError, *, hop: str = "") -> None:  # noqa: ARG002 - the bus has it
        self.answers.append(answer)


class StillTransfers:
    """Moves nothing until it is told to fail."""

    def __init__(self) -> None:
        self.lost_peers: list[str] = []
        self.broken = asyncio.Event()

    async def run_transfers(self) -> None:
        await self.broken.wait()
        raise ZeroDivisionError

    def handle_message(self, _: Delivery) -> bool:
        return True

    def peer_lost(self, instance: str) -> None:
        self.lost_peers.append(instance)


class Worker(WorkerActor[Job]):
    """Its jobs hold nothing but their place in the book, and one that moves KV takes its time to end."""

    kv_messages = (messages.KvReady,)
    peer_role = "prefill"

    def __init__(self, service: Service[DecodeConfig], model_dir: Path) -> None:
        driver: EngineDriver[StepResult] = EngineDriver(
            "test-engine", lambda: make_engine(model_dir), PrefixMirror(), self.wake
        )
        super().__init__(service, driver, PrefixMirror())
        self.sent = cast(NotedBus, self.bus)
        self.transfers = StillTransfers()
        self.heard = {"gateway-0"}
        self.clock = FakeClock()

    @property
    def jobs(self) -> list[str]:
        return list(self._book.jobs)

    def made(self, request_id: str, epoch: int = 1, *, gateway: str = "gateway-0", peer: str = "p") -> Job:
        return Job(
            request_id=request_id,
            epoch=epoch,
            gateway=gateway,
            detokenizer="detokenizer-0",
            peer=peer,
            deadline=Deadline.after(60.0),
            spec=SequenceSpec([1], 1, [], sampling()),
            priority=0,
        )

    def add(self, request_id: str, epoch: int = 1, *, gateway: str = "gateway-0", peer: str = "p") -> Job:
        job = self.made(request_id, epoch, gateway=gateway, peer=peer)
        self._book._take_in(job)
        return job

    async def open_transfers(self) -> Transfers:
        self._book = JobBook("decode", lambda gateway: gateway in self.heard)
        self._book._leases = GatewayLeases(
            lambda gateway: gateway in self.heard, lease_s=LEASE_S, clock=self.clock
        )
        return self.transfers

    def worker_load(self) -> WorkerLoad:
        return WorkerLoad(capacity=1, live=len(self._book.jobs), kv_blocks_free=0)

    async def on_work(self, delivery: Delivery) -> None:
        raise self.unknown(delivery.message)

    def is_computing(self) -> bool:
        return bool(self._book.jobs)

    async def end_transfers(self) -> None: ...
    async def admit_jobs(self) -> None: ...

    async def take_steps(self) -> bool:
        return True

    async def step_on(self) -> None:
        await self._driver.flush_releases()

    def release_job(self, job: Job, reason: str) -> None:  # noqa: ARG002 - the hook has it
        if job.phase is JobPhase.TRANSFERRING:
            job.phase = JobPhase.STOPPING
        elif job.phase is not JobPhase.STOPPING:
            self._book._let_go(job.key)

    def deadline_passed(self, job: Job) -> DeadlineExpired:
        return DeadlineExpired(job.phase.value)


@pytest.fixture
def service() -> Service[DecodeConfig]:
    service = Service("decode", DecodeConfig(), "decode-0")
    service.bus = cast(Bus, NotedBus())
    return service


@pytest.fixture
async def worker(service: Service[DecodeConfig], model_dir: Path) -> AsyncIterator[Worker]:
    worker = Worker(service, model_dir)
    await worker.on_start()
    yield worker
    await worker.on_stop()


async def cancel(worker: Worker, request_id: str, epoch: int, sender: str = "") -> CancelAck:
    envelope = Envelope(request_id, epoch, reply="gateway")
    await worker.on_message(Delivery(envelope, Cancel("cancelled"), sender))
    answer = worker.sent.answers.pop()
    assert isinstance(answer, CancelAck)
    return answer


async def test_a_cancel_ends_its_epoch_and_leaves_a_later_one_alone(worker: Worker) -> None:
    worker.add("r", 2)
    assert await cancel(worker, "r", 1) == CancelAck(held=False, phase="")
    assert worker.jobs == ["r/2"]
    assert await cancel(worker, "r", 2) == CancelAck(held=True, phase="queued")
    assert worker.jobs == []


async def test_a_gateway_cannot_cancel_what_another_one_has_placed(worker: Worker) -> None:
    worker.add("r", gateway="gateway-0")
    before = value("penstock_dropped_messages_total", reason="foreign_cancel")
    assert await cancel(worker, "r", 9, "gateway-1") == CancelAck(held=False, phase="")
    assert worker.jobs == ["r/1"]
    assert value("penstock_dropped_messages_total", reason="foreign_cancel") == before + 1
    assert await cancel(worker, "r", 1, "gateway-0") == CancelAck(held=True, phase="queued")


async def test_a_cancel_that_overtakes_its_request_counts_for_its_own_gateway_alone(worker: Worker) -> None:
    await cancel(worker, "r", 9, "gateway-1")
    await worker.replace_earlier(worker.made("r", 1), "gateway-0")
    await cancel(worker, "r", 1, "gateway-0")
    with pytest.raises(Cancelled):
        await worker.replace_earlier(worker.made("r", 1), "gateway-0")
    await worker.replace_earlier(worker.made("r", 2), "gateway-0")


@pytest.mark.parametrize(("gateway", "sender"), [("gateway-1", "gateway-1"), ("gateway-0", "gateway-1")])
async def test_a_gateway_cannot_replace_what_another_one_has_placed(
    worker: Worker, gateway: str, sender: str
) -> None:
    worker.add("r", gateway="gateway-0")
    before = value("penstock_dropped_messages_total", reason="foreign_route")
    with pytest.raises(InvalidRequest, match=r"of your own|places its own"):
        await worker.replace_earlier(worker.made("r", 2, gateway=gateway), sender)
    assert worker.jobs == ["r/1"]
    assert value("penstock_dropped_messages_total", reason="foreign_route") == before + 1


async def test_a_new_placement_ends_earlier_ones_of_its_request_alone(worker: Worker) -> None:
    worker.add("r", 1)
    worker.add("other", 1)
    later = worker.add("r", 2)
    await worker.replace_earlier(later, "gateway-0")
    assert worker.jobs == ["other/1", "r/2"]


async def test_a_worker_that_drains_takes_no_placement(
    worker: Worker, service: Service[DecodeConfig]
) -> None:
    job = worker.add("r")
    service.begin_drain()
    with pytest.raises(Overloaded, match="draining"):
        await worker.replace_earlier(job, "gateway-0")


async def test_a_gateway_that_is_gone_takes_its_jobs_along_and_a_suspect_one_does_not(
    worker: Worker,
) -> None:
    worker.add("mine")
    worker.add("theirs", gateway="gateway-1")
    await worker.on_instance_lost("gateway", "gateway-0", "suspect")
    assert worker.jobs == ["mine/1", "theirs/1"]
    await worker.on_instance_lost("gateway", "gateway-0", "stopped")
    assert worker.jobs == ["theirs/1"]
    assert worker.sent.lost == []


async def test_a_gateway_that_is_silent_for_a_lease_has_its_jobs_given_back(worker: Worker) -> None:
    worker.add("mine")
    worker.add("theirs", gateway="gateway-1")
    worker.clock.advance(LEASE_S)
    await worker.on_tick()
    assert worker.jobs == ["mine/1"]


async def test_a_lost_peer_loses_the_jobs_that_wait_for_it_and_ends_its_transfers(worker: Worker) -> None:
    worker.add("waits", peer="prefill-0")
    worker.add("moves", peer="prefill-0").phase = JobPhase.TRANSFERRING
    worker.add("elsewhere", peer="prefill-1")
    await worker.on_instance_lost("prefill", "prefill-0", "suspect")
    assert worker.jobs == ["moves/1", "elsewhere/1"]
    ((subject, request_id, lost),) = worker.sent.lost
    assert (subject, request_id) == ("penstock.gateway.gateway-0", "waits")
    assert (lost.code, lost.hop) == ("unavailable", "prefill")
    assert worker.transfers.lost_peers == ["prefill-0"]


async def test_a_drain_waits_for_the_last_job(worker: Worker) -> None:
    worker.add("r").phase = JobPhase.TRANSFERRING
    drained = asyncio.create_task(worker.drained())
    await cancel(worker, "r", 1)
    await worker.turn()
    await asyncio.sleep(0)
    assert not drained.done()  # late KV could still land
    worker._book._let_go("r/1")
    await worker.turn()
    await asyncio.wait_for(drained, 60)


async def test_a_message_of_a_transfer_that_comes_before_the_engine_is_refused(
    service: Service[DecodeConfig], model_dir: Path
) -> None:
    worker = Worker(service, model_dir)
    ready = messages.KvReady(1, 0, 1, 0, (1,), (1,))
    with pytest.raises(Unavailable, match="starting"):
        worker.receive(Delivery(Envelope("r", 1), ready))
    await worker.drained()  # nor is there anything to wait for


async def test_a_worker_whose_transfers_have_failed_is_none_any_more(worker: Worker) -> None:
    worker.transfers.broken.set()
    await until(lambda: worker._transferring is not None and worker._transferring.done())
    with pytest.raises(InternalError, match="KV transfers") as caught:
        await worker.turn()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(("stopped", "code"), [(True, "unavailable"), (False, "internal")])
async def test_a_worker_that_ends_tells_each_session_once(
    service: Service[DecodeConfig], model_dir: Path, stopped: bool, code: str
) -> None:
    worker = Worker(service, model_dir)
    await worker.on_start()
    worker.add("queued")
    worker.add("moves").phase = JobPhase.TRANSFERRING
    worker.add("told").phase = JobPhase.STOPPING
    if stopped:
        worker.stop()
    await worker.on_stop()
    assert [(request_id, lost.code, lost.hop) for _, request_id, lost in worker.sent.lost] == [
        ("queued", code, "decode"),
        ("moves", code, "decode"),
    ]


async def test_time_matters_from_the_first_job_on_until_the_last_is_gone(worker: Worker) -> None:
    ticking = asyncio.ensure_future(worker.until_work())
    await worker.handle(NEWS)
    await asyncio.sleep(0)
    assert not ticking.done()
    worker.add("mine")
    await worker.handle(NEWS)
    await ticking
    await worker.until_work()
    await cancel(worker, "mine", 1)
    resting = asyncio.ensure_future(worker.until_work())
    await asyncio.sleep(0)
    assert not resting.done()
    resting.cancel()


async def test_time_matters_while_the_bus_has_no_room_for_what_was_said(worker: Worker) -> None:
    worker.sent.has_room = False
    await worker._outbox.lost("gateway-0", "r", 1, Unavailable("gone"))
    await worker.until_work()
    worker.sent.has_room = True
    await worker._outbox.send_waiting()
    resting = asyncio.ensure_future(worker.until_work())
    await asyncio.sleep(0)
    assert not resting.done()
    resting.cancel()
