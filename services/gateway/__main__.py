"""`python -m services.gateway`: the edge that clients talk to, and the sessions behind it."""

from __future__ import annotations

from shared.process.quiet_end import interrupts_end_at_once

with interrupts_end_at_once():
    import asyncio
    from dataclasses import replace

    from services.gateway.admission.pressure import watch_pressure
    from services.gateway.asks.passage_asks import PassageAsks
    from services.gateway.asks.text_asks import TextAsks
    from services.gateway.asks.text_calls import TextCalls
    from services.gateway.asks.token_bytes_cache import TokenBytesCache
    from services.gateway.config import GatewayConfig
    from services.gateway.context import SessionContext
    from services.gateway.grpc.edge import InferenceEdge
    from services.gateway.grpc.edge_server import EdgeServer
    from services.gateway.http.server import HttpServer
    from services.gateway.keys.key_gate import KeyGate
    from services.gateway.scrape_targets import SD_PATH, scrape_targets
    from services.gateway.session.client_cancels import ClientCancels
    from services.gateway.session.ingress import Ingress
    from services.gateway.session.session_registry import SessionRegistry
    from services.gateway.shared_ports import LAST_CALLS_S, divert_new_connections
    from services.gateway.tasks import Tasks
    from shared.bus.subjects import inbox
    from shared.process.service import Service, run_service

FINISH_TIMEOUT_S = 1.0


async def body(service: Service[GatewayConfig]) -> None:
    config, bus, fleet, instance = service.config, service.bus, service.fleet, service.instance
    key_gate, tasks = KeyGate.of(config), Tasks()
    context = SessionContext.of(instance, config, bus, fleet, tasks)
    registry = SessionRegistry(
        context,
        incarnation=service.incarnation,
        heartbeat=service.heartbeat,
        changed=service.changed,
        begin_drain=service.begin_drain,
    )
    fleet.on_lost(registry.on_instance_lost)
    fleet.working = registry.has_sessions
    await bus.serve(inbox(service.role, instance), registry.receive)
    ingress, client_cancels = Ingress(registry, key_gate, config), ClientCancels(context, registry)
    text_calls = TextCalls(context, key_gate)
    text_asks, passage_asks = TextAsks(text_calls), PassageAsks(text_calls)
    edge = InferenceEdge(ingress, client_cancels, text_asks, passage_asks, config)
    server = EdgeServer(edge, registry, text_calls, fleet, config)
    http_server = HttpServer.of(
        ingress,
        client_cancels,
        text_asks,
        passage_asks,
        TokenBytesCache(text_asks),
        server.can_serve,
        config,
    )
    service.http.add_page(SD_PATH, lambda: scrape_targets([view.heartbeat for view in fleet.all()]))

    async def leave_ports() -> None:
        await divert_new_connections((server.address, http_server.address))
        tasks.start("leave-grpc-port", server.leave_port())
        await http_server.leave_port()
        await asyncio.sleep(LAST_CALLS_S)

    await server.start()
    try:
        await http_server.start()
        service.supervisor.start_task("health", server.watch_fleet)
        service.supervisor.start_task("api-keys", key_gate.watch_file)
        service.supervisor.start_task(
            "pressure", lambda: watch_pressure(context.pressure, context.degradation, service.changed)
        )
        service.on_drain(server.drain)
        if config.share_ports:
            service.on_drain(leave_ports)
        await server.serving.wait()
        await service.ready(lambda: replace(registry.status(), grpc=server.address, http=http_server.address))
        await service.run()
    finally:
        await server.stop()
        await http_server.stop()
        await tasks.finish(FINISH_TIMEOUT_S)


if __name__ == "__main__":
    run_service("gateway", GatewayConfig, body)
