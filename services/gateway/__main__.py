"""`python -m services.gateway`: the edge that clients talk to, and the sessions behind it."""

from __future__ import annotations

from shared.process.quiet_end import interrupts_end_at_once

with interrupts_end_at_once():
    from services.gateway.config import GatewayConfig
    from shared.process.service_help import answer_arguments

    if __name__ == "__main__":
        answer_arguments("gateway", GatewayConfig)

    from services.gateway.gateway import Gateway
    from services.gateway.scrape_targets import SD_PATH, scrape_targets
    from shared.process.service import Service, run_service


async def body(service: Service[GatewayConfig]) -> None:
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
