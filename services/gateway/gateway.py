"""Build a gateway: the sessions, both edges in front of them, and what watches over them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from services.gateway.admission.pressure import watch_pressure
from services.gateway.asks.passage_asks import PassageAsks
from services.gateway.asks.text_asks import TextAsks
from services.gateway.asks.text_calls import TextCalls
from services.gateway.asks.token_bytes_cache import TokenBytesCache
from services.gateway.config import GatewayConfig
from services.gateway.connection_places import fit_connections
from services.gateway.context import SessionContext
from services.gateway.grpc.edge import InferenceEdge
from services.gateway.grpc.edge_server import EdgeServer
from services.gateway.http.console.console_pages import ConsolePages
from services.gateway.http.server import HttpServer
from services.gateway.keys.key_gate import KeyGate
from services.gateway.regions.region_watch import RegionWatch
from services.gateway.session.client_cancels import ClientCancels
from services.gateway.session.ingress import Ingress
from services.gateway.session.session_registry import SessionRegistry
from services.gateway.shared_ports import LAST_CALLS_S, divert_new_connections
from shared.bus import Bus
from shared.bus.fleet import FleetView
from shared.bus.heartbeats.repeated_beats import beat_with
from shared.bus.subjects import inbox
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.messages import Heartbeat
from shared.tasks import Tasks

FINISH_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway of a process. `start` it, run its `watchers`, and `stop` it."""

    context: SessionContext
    registry: SessionRegistry
    key_gate: KeyGate
    text_calls: TextCalls
    grpc: EdgeServer
    http: HttpServer

    @classmethod
    def build(
        cls,
        instance: str,
        config: GatewayConfig,
        bus: Bus,
        fleet: FleetView,
        *,
        incarnation: int,
        heartbeat: Callable[[], Heartbeat],
        changed: Callable[[], None],
        begin_drain: Callable[[int], None],
        own_detokenizer: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> Self:
        """Put the parts together; nothing listens yet.

        `heartbeat` says who this instance is and whether it moves, `changed` asks for one to be sent, and
        `begin_drain` is called when an operator asks for it, with the seconds that it may take;
        `own_detokenizer` is the one in this process, "" for none; the limits of keys go by `clock`. Raises
        ConfigError for what cannot be used.
        """
        config = fit_connections(config)
        tasks = Tasks()
        key_gate = KeyGate.of(instance, config, bus, fleet, tasks.start, clock, incarnation=incarnation)
        context = SessionContext.of(instance, config, bus, fleet, tasks, own_detokenizer)
        registry = SessionRegistry(
            context,
            key_gate,
            incarnation=incarnation,
            heartbeat=heartbeat,
            changed=changed,
            begin_drain=begin_drain,
        )
        fleet.on_lost(registry.on_instance_lost)
        fleet.working = registry.has_sessions
        ingress, client_cancels = Ingress(registry, key_gate, config), ClientCancels(context, registry)
        text_calls = TextCalls(context, key_gate)
        text_asks, passage_asks = TextAsks(text_calls), PassageAsks(text_calls)
        edge = InferenceEdge(ingress, client_cancels, text_asks, passage_asks, config)
        grpc = EdgeServer(edge, ingress, registry, text_calls, fleet, config)
        token_bytes = TokenBytesCache(text_asks)
        console = ConsolePages(ingress, context, registry)
        http = HttpServer.of(
            ingress, client_cancels, text_asks, passage_asks, token_bytes, grpc.can_serve, console, config
        )
        return cls(context, registry, key_gate, text_calls, grpc, http)

    async def start(self) -> None:
        """Listen on the bus and at both edges. Raises Unavailable when an address cannot be had."""
        context = self.context
        if context.exporter is not None:
            context.exporter.start()
        registry = self.registry
        await context.bus.serve(
            inbox("gateway", context.instance), registry.receive, registry.text_messages.take
        )
        await self.grpc.start()
        await self.http.start()

    def watchers(self, changed: Callable[[], None]) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return what has to run as long as the gateway does, by name."""
        context, regions = self.context, self.context.regions
        watchers: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "health": self.grpc.watch_fleet,
            "grpc-connections": self.grpc.watch_connections,
            "api-keys": self.key_gate.keys.watch_file,
            "key-limits": self.key_gate.keeper.watch,
            "virtual-models": context.virtual_models.watch_file,
            "flags": lambda: context.flags.watch(self.registry.flagged_times, changed),
            "pressure": lambda: watch_pressure(context.pressure, context.degradation, changed),
        }
        if regions is not None:
            watch = RegionWatch(
                regions, context.bus, context.fleet, context.instance, self.registry.has_sessions
            )
            watchers["regions"] = watch.run
        return watchers

    def status(self) -> Heartbeat:
        """Return what the sessions say, with where requests are taken."""
        beat = self.registry.status()
        report = replace(beat.gateway, grpc=self.grpc.address, http=self.http.address)
        return beat_with(beat, gateway=report)

    async def leave_ports(self) -> None:
        """Leave the ports to the other gateways that share them, before the last calls have ended."""
        if not self._has_neighbour():
            return
        self.context.drain_gate.hears_last_calls = True
        await divert_new_connections((self.grpc.address, self.http.address))
        self.context.tasks.start("leave-grpc-port", self.grpc.leave_port())
        await self.http.leave_port()
        await asyncio.sleep(LAST_CALLS_S)

    async def drain(self) -> None:
        """Return when all is answered: what is live, and what connections ask last as the ports are left."""
        await self.grpc.drain()
        while self.context.drain_gate.hears_last_calls:
            await self.http.hear_last()
            if not (self.registry.live_count or self.text_calls.live_count):
                break
            await self.grpc.drain()

    def _has_neighbour(self) -> bool:
        """Return whether another gateway listens where this one does; else nobody would be connected anew."""
        me = self.context.instance
        others = (view.heartbeat for view in self.context.fleet.instances("gateway"))
        return any(beat.instance != me and beat.gateway.grpc == self.grpc.address for beat in others)

    async def stop(self) -> None:
        """End both edges and what was begun in the background; a gateway that never started stops too."""
        await self.grpc.stop()
        await self.http.stop()
        await self.context.canceller.close()
        await self.context.tasks.finish(FINISH_TIMEOUT_S)
        if self.context.exporter is not None:
            await asyncio.to_thread(self.context.exporter.close)
