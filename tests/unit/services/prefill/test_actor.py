"""The prefill worker turn by turn, with a real engine and a real sender; the test is the bus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from services.prefill.actor import PrefillActor
from services.prefill.config import PrefillConfig
from shared.bus import Delivery
from shared.bus.bulk import BulkConnection
from shared.engine import Engine
from shared.kv.callbacks import OnFailed, OnReleased
from shared.kv.sender import KvSender
from shared.messages import (
    Cancel,
    CancelAck,
    Envelope,
    KvAbort,
    KvAbortAck,
    KvGrant,
    Message,
    Prefill,
    Tokens,
    pack_ids,
)
from shared.service import Service
from shared.worker.prefix_mirror import PrefixMirror
from tests.support.engine import make_engine, save_random_model
from tests.support.noted_bus import REPLY, NotedBus
from tests.support.sampling import sampling
from tests.support.wait import until

CHUNK = 16
PROMPT = range(1, 5 * CHUNK)


class Worker(PrefillActor):
    """Its mailbox and its turns are in the hands of the test."""

    def __init__(self, folder: Path) -> None:
        service = Service("prefill", PrefillConfig(), "prefill-0")
        self.sent = service.bus = NotedBus()

        def make_sender(engine: Engine, on_released: OnReleased, on_failed: OnFailed) -> KvSender:
            bulk = cast(BulkConnection, None)  # nothing is granted that bytes would be sent for
            return KvSender(
                self.sent, bulk, engine.kv_pool, None, on_released=on_released, on_failed=on_failed
            )

        super().__init__(
            service,
            "model",
            lambda: make_engine(folder, max_batch_tokens=CHUNK),
            make_sender,
            PrefixMirror(),
        )

    async def send(self, message: Message, request_id: str = "r", epoch: int = 1) -> Message:
        await self.handle(self.sent.asked(message, request_id, epoch))
        return self.sent.to(REPLY).pop()

    async def place(self, request_id: str = "r", epoch: int = 1) -> None:
        how = sampling(ignore_eos=True)
        prefill = Prefill(
            pack_ids(PROMPT), len(PROMPT), b"", how, "gateway-0", "detokenizer-0", "decode-0", 0
        )
        await self.send(prefill, request_id, epoch)

    async def step(self) -> None:
        """One turn, and what it began."""
        await self.turn()
        await until(lambda: self._driver._step is None or self._driver._step.done())

    async def until_first_token(self, request_id: str = "r", epoch: int = 1) -> None:
        async def drawn() -> bool:
            await self.step()
            return any(
                (request_id, epoch) in zip(tokens.request_ids, tokens.epochs, strict=True)
                for tokens in self.sent.to("penstock.detokenizer.detokenizer-0")
                if isinstance(tokens, Tokens)
            )

        await until(drawn)

    def grant(self) -> None:
        """Decode takes part in the transfer from now on, so that its end has to be acknowledged."""
        layout = self._driver.engine.layout.fingerprint()
        grant = KvGrant(1, layout, 0, 0, "nats", "penstock.kv.decode-0.1", 0)
        self.receive(Delivery(Envelope("r", 1), grant))

    def jobs_held(self) -> int:
        return sum(held.kind in ("queued", "transfer") for held in self.held())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def worker(folder: Path) -> AsyncIterator[Worker]:
    worker = Worker(folder)
    await worker.on_start()
    yield worker
    await worker.on_stop()


async def test_a_late_cancel_of_an_epoch_leaves_the_next_one_alive(worker: Worker) -> None:
    await worker.place(epoch=2)
    assert await worker.send(Cancel("replaced"), epoch=1) == CancelAck(held=False, phase="")
    await worker.until_first_token(epoch=2)


async def test_a_later_epoch_leaves_nothing_of_an_earlier_one_in_the_audit(worker: Worker) -> None:
    await worker.place(epoch=1)
    await worker.until_first_token(epoch=1)
    await worker.place(epoch=2)
    await worker.until_first_token(epoch=2)
    assert worker.jobs_held() == 1
    await worker.send(Cancel("cancelled"), epoch=2)
    await worker.step()
    await worker.step()
    assert list(worker.held()) == []


async def test_a_suspect_gateway_keeps_its_jobs_and_a_stopped_one_loses_them(worker: Worker) -> None:
    await worker.place()
    await worker.on_instance_lost("gateway", "gateway-0", "suspect")
    assert worker.jobs_held() == 1
    await worker.on_instance_lost("gateway", "gateway-1", "stopped")
    assert worker.jobs_held() == 1
    await worker.on_instance_lost("gateway", "gateway-0", "stopped")
    assert worker.jobs_held() == 0


async def test_a_cancel_in_mid_compute_stops_the_steps_though_nobody_acknowledges_the_abort(
    worker: Worker,
) -> None:
    await worker.place()
    await worker.step()
    worker.grant()
    ack = await worker.send(Cancel("cancelled"))
    assert ack == CancelAck(held=True, phase="computing")
    await worker.turn()  # takes the step that was running
    assert not worker._driver.stepping
    assert [(held.kind, held.phase) for held in worker.held()] == [("transfer", "stopping")]
    await until(lambda: KvAbort(1, "cancelled") in worker.sent.to("penstock.decode.decode-0"))
    worker.receive(Delivery(Envelope("r", 1), KvAbortAck(1)))
    await worker.turn()
    assert list(worker.held()) == []


async def test_a_cancel_in_transfer_keeps_the_blocks_until_the_abort_is_acknowledged(worker: Worker) -> None:
    await worker.place()
    await worker.until_first_token()
    worker.grant()
    assert await worker.send(Cancel("cancelled")) == CancelAck(held=True, phase="transferring")
    await worker.step()
    assert {held.kind for held in worker.held()} == {"transfer", "kv_blocks"}
    worker.receive(Delivery(Envelope("r", 1), KvAbortAck(1)))
    await worker.step()
    assert list(worker.held()) == []
