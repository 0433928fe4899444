"""`python -m services.speculator`: one speculator."""

from __future__ import annotations

from shared.process.quiet_end import interrupts_end_at_once

with interrupts_end_at_once():
    from services.speculator.config import SpeculatorConfig
    from shared.process.parts_of_torch import leave_parts_of_torch
    from shared.process.service_help import answer_arguments

    if __name__ == "__main__":
        answer_arguments("speculator", SpeculatorConfig)
        leave_parts_of_torch()

    from services.speculator.actor import SpeculatorActor
    from shared.config.fields import ConfigError
    from shared.engine.core_arbiter import WorkClass
    from shared.process.service import Service, run_service
    from shared.text.default_model import find_default_model
    from shared.text.model_source import DEMO_MODEL, resolve_model
    from shared.worker.engine_builder import build_engine
    from shared.worker.host import EngineHost

DEMO_DRAFT = DEMO_MODEL.with_name("draft")


async def body(service: Service[SpeculatorConfig]) -> None:
    config = service.config
    if not config.model and find_default_model() is not None:
        raise ConfigError("the model that is served by default has no draft; name one in model")
    model = resolve_model(config.model or str(DEMO_DRAFT), config.served_name)
    host = await EngineHost.load(
        service,
        model,
        lambda: build_engine(config, model.path, model.name, work_class=WorkClass.SPECULATOR),
    )
    await host.serve(lambda: SpeculatorActor(service, host.take_engine, host.mirror, host.adapters))


if __name__ == "__main__":
    run_service("speculator", SpeculatorConfig, body)
