"""`python -m services.prefill`: one prefill worker."""

from __future__ import annotations

from shared.process.quiet_end import interrupts_end_at_once

with interrupts_end_at_once():
    from services.prefill.actor import PrefillActor
    from services.prefill.config import PrefillConfig
    from services.prefill.pool import PoolBuffer
    from shared.bus.bulk import BulkConnection
    from shared.engine import Engine
    from shared.engine.core_arbiter import WorkClass
    from shared.kv.sending.sender import KvSender
    from shared.kv.transfer_key import OnFailed, OnReleased
    from shared.process.service import Service, run_service
    from shared.text.model_source import resolve_model
    from shared.worker.engine_builder import build_engine
    from shared.worker.host import EngineSource, announce_checkpoint, load_adapters, serve_engine
    from shared.worker.prefix_mirror import PrefixMirror


async def body(service: Service[PrefillConfig]) -> None:
    config, mirror, buffer = service.config, PrefixMirror(), PoolBuffer()
    model = resolve_model(config.model, config.served_name)
    engines = EngineSource(
        lambda: build_engine(
            config, model.path, model.name, buffer, work_class=WorkClass.PREFILL, transfers_kv=True
        )
    )
    engine = await engines.preload()
    announce_checkpoint(service, model)
    bulk = await BulkConnection.connect(
        config.nats_url, name=f"prefill/{service.instance}/kv", credentials=service.credentials
    )

    def make_sender(engine: Engine, on_released: OnReleased, on_failed: OnFailed) -> KvSender:
        return KvSender(
            service.bus, bulk, engine.kv_pool, buffer.shared, on_released=on_released, on_failed=on_failed
        )

    adapters = await load_adapters(service, config, model, engine)
    try:
        await serve_engine(
            service,
            lambda: PrefillActor(service, engines.take_engine, make_sender, mirror, adapters),
            adapters,
            engine,
        )
    finally:
        await service.supervisor.stop()
        await bulk.close()
        buffer.close()


if __name__ == "__main__":
    run_service("prefill", PrefillConfig, body)
