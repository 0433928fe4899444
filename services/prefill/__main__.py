"""`python -m services.prefill`: one prefill worker."""

from __future__ import annotations

from services.prefill.actor import OnFailed, OnReleased, PrefillActor
from services.prefill.config import PrefillConfig
from services.prefill.pool import PoolBuffer
from shared.bus.bulk import BulkConnection
from shared.bus.subjects import CANCEL_ALL, inbox
from shared.engine import Engine
from shared.kv.sender import KvSender
from shared.service import Service, run_service
from shared.text.model_source import resolve_model
from shared.worker.config import build_engine
from shared.worker.host import EngineSource, attend
from shared.worker.prefix_mirror import PrefixMirror


async def body(service: Service[PrefillConfig]) -> None:
    config, mirror, buffer = service.config, PrefixMirror(), PoolBuffer()
    model = resolve_model(config.model)
    engines = EngineSource(
        lambda: build_engine(config, model.path, model.model_id, buffer, transfers_kv=True)
    )
    await engines.preload()
    bulk = await BulkConnection.connect(config.nats_url, name=f"prefill/{service.instance}/kv")

    def make_sender(engine: Engine, on_released: OnReleased, on_failed: OnFailed) -> KvSender:
        return KvSender(
            service.bus, bulk, engine.kv_pool, buffer.shared, on_released=on_released, on_failed=on_failed
        )

    try:
        actor = service.supervisor.start(
            lambda: PrefillActor(service, model.model_id, engines.take, make_sender, mirror)
        )
        await attend(service, actor)
        await service.bus.serve(inbox(service.role, service.instance), actor.receive)
        await service.bus.serve(CANCEL_ALL, actor.receive)
        service.on_drain(actor.drained)
        await service.ready(actor.status)
        await service.run()
    finally:
        await service.supervisor.stop()
        await bulk.close()
        buffer.close()


if __name__ == "__main__":
    run_service("prefill", PrefillConfig, body)
