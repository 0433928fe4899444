"""`python -m services.decode`: one decode worker."""

from __future__ import annotations

from shared.process.quiet_end import interrupts_end_at_once

with interrupts_end_at_once():
    import asyncio
    import time

    from services.decode.actor import DecodeActor
    from services.decode.config import DecodeConfig
    from shared.bus.bulk import BulkConnection
    from shared.bus.fleet_state import HEARTBEAT_REQUEST_S
    from shared.config.fields import ConfigError
    from shared.engine import Engine
    from shared.engine.core_arbiter import WorkClass
    from shared.errors import InvalidRequest
    from shared.kv.receiving.receiver import KvReceiver
    from shared.kv.transfer_key import OnComplete, OnFailed, OnReleased
    from shared.process.service import Service, run_service
    from shared.text.model_sampling import served_sampling
    from shared.text.model_source import resolve_model
    from shared.worker.engine_builder import build_engine
    from shared.worker.host import EngineSource, announce_checkpoint, load_adapters, serve_engine
    from shared.worker.prefix_mirror import PrefixMirror


async def body(service: Service[DecodeConfig]) -> None:
    config, mirror = service.config, PrefixMirror()
    model = resolve_model(config.model, config.served_name)
    try:
        sampling = served_sampling(model, config.default_sampling)
    except InvalidRequest as error:
        raise ConfigError(error.message) from error
    engines = EngineSource(
        lambda: build_engine(
            config,
            model.path,
            model.name,
            work_class=WorkClass.DECODE,
            prompt_weight=config.prompt_weight,
            transfers_kv=True,
        )
    )
    engine = await engines.preload()
    announce_checkpoint(service, model)
    bulk = await BulkConnection.connect(
        config.nats_url, name=f"decode/{service.instance}/kv", credentials=service.credentials
    )

    def make_receiver(
        engine: Engine, on_complete: OnComplete, on_failed: OnFailed, on_released: OnReleased
    ) -> KvReceiver:
        return KvReceiver(
            service.bus,
            bulk,
            service.instance,
            time.time_ns() // 1000,  # a process that was restarted must not get its predecessor's chunks
            engine.kv_pool,
            config.kv_transport,
            on_complete=on_complete,
            on_failed=on_failed,
            on_released=on_released,
        )

    adapters = await load_adapters(service, config, model, engine)
    try:
        await asyncio.sleep(
            HEARTBEAT_REQUEST_S
        )  # by then every prefill worker that may be named to us is known
        await serve_engine(
            service,
            lambda: DecodeActor(service, engines.take_engine, make_receiver, mirror, adapters, sampling),
            adapters,
            engine,
        )
    finally:
        await service.supervisor.stop()
        await bulk.close()


if __name__ == "__main__":
    run_service("decode", DecodeConfig, body)
