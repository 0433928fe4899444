"""`python -m services.prefill`: one prefill worker."""

from __future__ import annotations

from shared.process.quiet_end import interrupts_end_at_once
from shared.seams.clock import SYSTEM_CLOCK

with interrupts_end_at_once():
    from services.prefill.config import PrefillConfig
    from shared.process.parts_of_torch import leave_parts_of_torch
    from shared.process.service_help import answer_arguments

    if __name__ == "__main__":
        answer_arguments("prefill", PrefillConfig)
        leave_parts_of_torch()

    from services.prefill.actor import PrefillActor
    from services.prefill.pool import PoolBuffer
    from shared.engine import Engine
    from shared.engine.core_arbiter import WorkClass
    from shared.kv.receiving.receiver import KvReceiver
    from shared.kv.sending.sender import KvSender
    from shared.kv.transfer_key import OnComplete, OnFailed, OnReleased
    from shared.process.service import Service, run_service
    from shared.text.model_source import resolve_model
    from shared.worker.engine_builder import build_engine
    from shared.worker.host import EngineHost, kv_connection


async def body(service: Service[PrefillConfig]) -> None:
    config, buffer = service.config, PoolBuffer()
    model = resolve_model(config.model, config.served_name)
    host = await EngineHost.load(
        service,
        model,
        lambda: build_engine(
            config, model.path, model.name, buffer, work_class=WorkClass.PREFILL, transfers_kv=True
        ),
    )
    try:
        async with kv_connection(service) as bulk:

            def make_sender(engine: Engine, on_released: OnReleased, on_failed: OnFailed) -> KvSender:
                return KvSender(
                    service.bus,
                    bulk,
                    engine.kv_pool,
                    buffer.shared,
                    on_released=on_released,
                    on_failed=on_failed,
                )

            def make_receiver(
                engine: Engine, on_complete: OnComplete, on_failed: OnFailed, on_released: OnReleased
            ) -> KvReceiver:
                return KvReceiver(
                    service.bus,
                    bulk,
                    service.instance,
                    SYSTEM_CLOCK.unix_us(),  # as for decode: no chunk of a predecessor's comes here
                    engine.kv_pool,
                    config.kv_transport,
                    on_complete=on_complete,
                    on_failed=on_failed,
                    on_released=on_released,
                )

            await host.serve(
                lambda: PrefillActor(
                    service, host.take_engine, make_sender, make_receiver, host.mirror, host.adapters
                )
            )
    finally:
        buffer.close()


if __name__ == "__main__":
    run_service("prefill", PrefillConfig, body)
