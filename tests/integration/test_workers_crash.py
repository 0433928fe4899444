"""A step that raises: everybody is told, and the worker starts again with a fresh engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.prefill.actor import PrefillActor
from services.prefill.config import PrefillConfig
from shared.bus.bulk import BulkConnection
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.engine import Engine, StepResult
from shared.errors import Unavailable
from shared.kv.callbacks import OnFailed, OnReleased
from shared.kv.sender import KvSender
from shared.service import Service
from shared.worker.config import build_engine
from shared.worker.host import keep_informed
from shared.worker.prefix_mirror import PrefixMirror
from tests.integration.workers_harness import WAIT_S, edge_of
from tests.support.models import target_model
from tests.support.wait import until

PREFILL = "prefill-crash"
PROMPT = list(range(10, 60))


class FailsOnce(Engine):
    """A real engine whose first step after loading raises, in the first of its lives."""

    lives = 0

    def step(self) -> StepResult:
        if FailsOnce.lives == 1:
            raise RuntimeError("the model broke")
        return super().step()


@asynccontextmanager
async def crashing_prefill(nats_url: str, model: Path) -> AsyncIterator[None]:
    """What services.prefill does, with an engine that fails."""
    config = PrefillConfig(nats_url=nats_url, instance=PREFILL, kv_memory_mb=4)
    service = Service("prefill", config, PREFILL)
    await service.open()
    bulk = await BulkConnection.connect(nats_url, name="kv")

    def load() -> Engine:
        FailsOnce.lives += 1
        engine = build_engine(config, model, model.name)
        engine.__class__ = FailsOnce
        return engine

    def make_sender(engine: Engine, on_released: OnReleased, on_failed: OnFailed) -> KvSender:
        return KvSender(service.bus, bulk, engine.kv_pool, None, on_released=on_released, on_failed=on_failed)

    try:
        mirror = PrefixMirror()
        actor = service.supervisor.start(lambda: PrefillActor(service, model.name, load, make_sender, mirror))
        await keep_informed(service, actor)
        await service.bus.serve(inbox("prefill", PREFILL), actor.receive)
        await service.ready(actor.status)
        yield
    finally:
        await service.supervisor.stop(Deadline.after(5.0))
        await bulk.close()
        await service.close()


async def test_a_failed_step_loses_its_requests_and_the_next_one_works(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FailsOnce, "lives", 0)
    model = target_model(tmp_path)
    async with crashing_prefill(nats_url, model), edge_of(nats_url, model.name) as edge:
        await edge.ready(PREFILL)
        unlucky, lucky = edge.new_id(), edge.new_id()
        await edge.prefill(unlucky, PROMPT, prefill=PREFILL)
        lost = await edge.lost(unlucky)
        assert (lost.code, lost.hop) == ("internal", "prefill")

        async def taken() -> bool:
            try:
                await edge.prefill(lucky, PROMPT, prefill=PREFILL)
            except Unavailable:  # the crashed actor tells its last before the next one is there: "ask again"
                return False
            return True

        await until(taken, timeout_s=WAIT_S)
        await until(lambda: edge.streams[lucky, 1].ids, timeout_s=WAIT_S)
        await edge.cancel("prefill", PREFILL, lucky)
        await edge.until_idle(PREFILL)
    assert FailsOnce.lives == 2
