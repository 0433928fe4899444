"""`python -m services.gateway`: the edge that clients talk to, and the sessions behind it."""

from __future__ import annotations

from shared.process.quiet_end import interrupts_end_at_once

with interrupts_end_at_once():
    from services.gateway.config import GatewayConfig
    from shared.process.service_help import answer_arguments

    if __name__ == "__main__":
        answer_arguments("gateway", GatewayConfig)

    from collections.abc import AsyncIterator
    from contextlib import asynccontextmanager

    from services.gateway.gateway import Gateway
    from services.gateway.scrape_targets import SD_PATH, scrape_targets
    from shared.process.service import Service, run_service


async def body(service: Service[GatewayConfig]) -> None:
    """Serve; a detokenizer of its own is ready first, and ends last."""
    async with own_detokenizer(service) as detokenizer:
        await serve_gateway(service, detokenizer)


@asynccontextmanager
async def own_detokenizer(service: Service[GatewayConfig]) -> AsyncIterator[str]:
    """Have a detokenizer in this process where the settings say so: its name, "" without one."""
    if not service.config.own_detokenizer:
        yield ""
        return
    # The one place where a service imports another: an operator wants the two in one process.
    from services.detokenizer.config import DetokenizerConfig  # noqa: PLC0415 - nobody else needs it
    from services.detokenizer.service_body import body as detokenizer_body  # noqa: PLC0415
    from shared.process.inner_service import inner_service  # noqa: PLC0415

    async with inner_service(service, "detokenizer", DetokenizerConfig, detokenizer_body) as inner:
        yield inner.instance


async def serve_gateway(service: Service[GatewayConfig], detokenizer: str) -> None:
    fleet = service.fleet
    gateway = Gateway.build(
        service.instance,
        service.config,
        service.bus,
        fleet,
        incarnation=service.incarnation,
        heartbeat=service.heartbeat,
        changed=service.changed,
        begin_drain=service.begin_drain,
        own_detokenizer=detokenizer,
    )
    service.http.add_page(SD_PATH, lambda: scrape_targets([view.heartbeat for view in fleet.all()]))
    try:
        await gateway.start()
        for name, watch in gateway.watchers(service.changed).items():
            service.supervisor.start_task(name, watch)
        service.on_drain(gateway.key_gate.keeper.leave)
        service.on_drain(gateway.drain)
        if service.config.share_ports:
            service.on_drain(gateway.leave_ports)
        await gateway.grpc.serving.wait()
        await service.ready(gateway.status)
        await service.run()
    finally:
        await gateway.stop()


if __name__ == "__main__":
    run_service("gateway", GatewayConfig, body)
