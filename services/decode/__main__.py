"""`python -m services.decode`: one decode worker."""

from __future__ import annotations

from shared.process.quiet_end import interrupts_end_at_once
from shared.seams.clock import SYSTEM_CLOCK

with interrupts_end_at_once():
    from services.decode.config import DecodeConfig
    from shared.process.parts_of_torch import leave_parts_of_torch
    from shared.process.service_help import answer_arguments

    if __name__ == "__main__":
        answer_arguments("decode", DecodeConfig)
        leave_parts_of_torch()

    import asyncio

    from services.decode.actor import DecodeActor
    from shared.bus.fleet_state import HEARTBEAT_REQUEST_S
    from shared.config.fields import ConfigError
    from shared.engine import Engine
    from shared.engine.core_arbiter import WorkClass
    from shared.errors import InvalidRequest
    from shared.kv.receiving.receiver import KvReceiver
    from shared.kv.sending.sender import KvSender
    from shared.kv.transfer_key import OnComplete, OnFailed, OnReleased, OnSent
    from shared.process.service import Service, run_service
    from shared.text.model_sampling import served_sampling
    from shared.text.model_source import resolve_model
    from shared.worker.engine_builder import build_engine
    from shared.worker.host import EngineHost, kv_connection


async def body(service: Service[DecodeConfig]) -> None:
    config = service.config
    model = resolve_model(config.model, config.served_name)
    try:
        sampling = served_sampling(model, config.default_sampling)
    except InvalidRequest as error:
        raise ConfigError(error.message) from error
    host = await EngineHost.load(
        service,
        model,
        lambda: build_engine(
            config,
            model.path,
            model.name,
            work_class=WorkClass.DECODE,
            prompt_weight=config.prompt_weight,
            itl_target_s=config.itl_target_ms / 1000,
            transfers_kv=True,
        ),
    )
    async with kv_connection(service) as bulk:

        def make_receiver(
            engine: Engine, on_complete: OnComplete, on_failed: OnFailed, on_released: OnReleased
        ) -> KvReceiver:
            return KvReceiver(
                service.bus,
                bulk,
                service.instance,
                SYSTEM_CLOCK.unix_us(),  # a process that was restarted must not get its predecessor's chunks
                engine.kv_pool,
                config.kv_transport,
                on_complete=on_complete,
                on_failed=on_failed,
                on_released=on_released,
            )

        def make_sender(
            engine: Engine, on_released: OnReleased, on_failed: OnFailed, on_sent: OnSent
        ) -> KvSender:
            return KvSender(
                service.bus,
                bulk,
                engine.kv_pool,
                None,
                on_released=on_released,
                on_failed=on_failed,
                on_sent=on_sent,
            )

        # Every prefill worker that requests may name is known after that.
        await asyncio.sleep(HEARTBEAT_REQUEST_S)
        await host.serve(
            lambda: DecodeActor(
                service,
                host.take_engine,
                make_receiver,
                make_sender,
                host.mirror,
                host.adapters,
                sampling,
            )
        )


if __name__ == "__main__":
    run_service("decode", DecodeConfig, body)
