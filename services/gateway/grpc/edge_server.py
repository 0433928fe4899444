"""The gRPC server: the edge, health that tells the truth about the fleet, and reflection."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.gateway.asks.text_calls import TextCalls
from services.gateway.config import GatewayConfig
from services.gateway.edge_certificate import HTTP2, EdgeCertificate, is_loopback
from services.gateway.grpc.edge import InferenceEdge
from services.gateway.grpc.edge_intake import INFERENCE, CallIntake, most_calls
from services.gateway.grpc.edge_reflection import serve_reflection
from services.gateway.grpc.idle_connections import ConnectionCalls, IdleConnections
from services.gateway.grpc.wide_server import wide_server
from services.gateway.session.ingress import Ingress
from services.gateway.session.session_registry import SessionRegistry
from shared.alarm import Alarm
from shared.bus.fleet import FleetView
from shared.errors import Unavailable
from shared.http2.grpc_server import GrpcServer
from shared.http2.limits import ServerLimits
from shared.http2.native_codec import has_codec
from shared.messages import MAX_DRAIN_S
from shared.roles import REQUIRED_ROLES
from shared.ticks import seconds_to_tick

log = structlog.get_logger()

HEALTH_POLL_S = 0.1
REST_POLL_S = 1.0
"""The same while it serves: who is lost is looked at at once, and one that drains has its time."""
STOP_GRACE_S = 0.5
CANCEL_TIMEOUT_S = 2.0
MAX_EVENT_BYTES = 16 << 20
"""The largest event; max_buffered_tokens keeps them far below."""
KEEPALIVE_MS = 5000
KEEPALIVE_TIMEOUT_MS = 10_000
"""A client whose machine is gone is noticed within the two together, and its request cancelled. One that is
only busy, or that we were too busy to hear, keeps its calls: to answer within 2 s was too much to ask where
thousands of calls begin at once."""
MIN_CLIENT_PING_MS = 1000
HANDSHAKE_TIMEOUT_MS = 10_000
"""The longest time from the beginning of a connection until it has said in TLS and in HTTP/2 what it is."""
IDLE_CONNECTION_MS = 300_000
"""A connection without a call for so long is asked to go; clients' libraries connect again by themselves."""
MAX_UNREAD_CALLS = 16_384
"""The most calls of a method that have come in and were not looked at yet, of all connections; more are
cancelled without a word. One connection never has more than `most_calls` open: its client's library holds
back the rest, which costs nothing here and ends by its own deadline."""
MAX_UNREAD_BYTES = 65_536
"""The most of a call's message that is taken in before anybody reads it; the client's library holds back the
rest. So all calls of a method that wait to be looked at are 1 GiB at most. By itself the library guesses how
much a connection can carry and takes in that: 8 to 16 MB of each call of one that has sent much before."""
UNREAD_CALL_S = 60
"""The longest time for which a call may not be looked at."""


class EdgeServer:
    def __init__(
        self,
        edge: InferenceEdge,
        ingress: Ingress,
        registry: SessionRegistry,
        text_calls: TextCalls,
        fleet: FleetView,
        config: GatewayConfig,
    ) -> None:
        self._registry = registry
        self._text_calls = text_calls
        self._fleet = fleet
        self._config = config
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # the stubs lack aio
        calls = ConnectionCalls(config.grpc_max_connections)
        self._idle = IdleConnections(config.grpc_max_connections, calls)
        self._intake = CallIntake(ingress, calls, config)
        self._server = _server(config, self._intake)
        self._certificate = EdgeCertificate.of(config)
        rpc.add_InferenceServicer_to_server(edge, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        serve_reflection((INFERENCE, health.SERVICE_NAME), self._server)
        self.address = ""
        self.serving = asyncio.Event()
        """Set once every role that a request needs was seen."""

    async def start(self) -> None:
        """Listen; raises Unavailable when the address cannot be had."""
        await self._set_health(serving=False)
        host = f"[{self._config.grpc_host}]" if ":" in self._config.grpc_host else self._config.grpc_host
        try:
            port = self._add_port(f"{host}:{self._config.grpc_port}")
        except RuntimeError as error:
            raise Unavailable(
                f"cannot listen on {host}:{self._config.grpc_port}: free it or set another grpc_port"
            ) from error
        await self._server.start()
        self.address = f"{host}:{port}"
        native = isinstance(self._server, GrpcServer)
        log.info("grpc_listening", grpc=self.address, tls=self._certificate is not None, native=native)
        if self._config.api_keys and self._certificate is None and not is_loopback(self._config.grpc_host):
            log.warning("api_keys_in_clear", help="keys can be read on their way; set tls_cert and tls_key")

    def _add_port(self, address: str) -> int:
        if self._certificate is None:
            return int(self._server.add_insecure_port(address))
        if isinstance(self._server, GrpcServer):
            return self._server.add_secure_port(address, self._certificate.ssl_context(HTTP2))
        return int(self._server.add_secure_port(address, self._certificate.credentials()))

    async def watch_fleet(self) -> None:
        """Keep the health service true: SERVING while every needed role has an instance that is ready."""
        was: bool | None = None
        lost = Alarm()
        self._fleet.on_lost(lambda _role, _instance, _why: lost.ring())
        while True:
            lost.clear()
            now = self.can_serve()
            if now != was:
                await self._set_health(serving=now)
                log.info("health", serving=now)
                was = now
            if now:
                self.serving.set()
            await lost.wait(seconds_to_tick(REST_POLL_S) if now else HEALTH_POLL_S)

    async def watch_connections(self) -> None:
        """Let connections without a call make room for others where there is little."""
        await self._idle.watch(int(self.address.rpartition(":")[2]))

    async def leave_port(self) -> None:
        """Listen no more and tell clients to connect elsewhere for what they ask next; live calls go on until
        `stop`."""
        await self._server.stop(MAX_DRAIN_S)

    async def drain(self) -> None:
        """Tell clients to go elsewhere, then wait for the live requests and calls."""
        self._registry.drain_gate.closing = True
        await self._set_health(serving=False)
        await asyncio.gather(self._registry.drain_sessions(), self._text_calls.drain())

    async def stop(self) -> None:
        """Cancel what is left, then close every call; bounded."""
        self._registry.drain_gate.closing = True
        self._registry.drain_gate.hears_last_calls = False
        await self._registry.cancel_sessions(CANCEL_TIMEOUT_S)
        await self._server.stop(STOP_GRACE_S)

    def can_serve(self) -> bool:
        """Whether every role that a request needs has an instance, and this gateway is not going away."""
        return not self._registry.drain_gate.closing and all(
            self._fleet.instances(role) for role in REQUIRED_ROLES
        )

    async def _set_health(self, *, serving: bool) -> None:
        status = (
            health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in ("", INFERENCE):
            await self._health.set(name, status)


def _server(config: GatewayConfig, intake: CallIntake) -> Any:
    """Return the server that the configuration asks for, as far as it was built here."""
    if config.grpc_server == "native" and has_codec():
        return GrpcServer(_limits(config), [intake], shared=config.share_ports)
    return wide_server(_options(config), [intake])


def _limits(config: GatewayConfig) -> ServerLimits:
    """Return for our own server what `_options` are for gRPC's."""
    return ServerLimits(
        max_connections=config.grpc_max_connections,
        max_calls=most_calls(config),
        max_message_bytes=config.max_request_bytes,
        max_answer_bytes=MAX_EVENT_BYTES,
        unread_bytes=MAX_UNREAD_BYTES,
        handshake_s=HANDSHAKE_TIMEOUT_MS / 1000,
        idle_s=IDLE_CONNECTION_MS / 1000,
        keepalive_s=KEEPALIVE_MS / 1000,
        keepalive_timeout_s=KEEPALIVE_TIMEOUT_MS / 1000,
        min_ping_ms=MIN_CLIENT_PING_MS,
    )


def _options(config: GatewayConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_request_bytes),
        ("grpc.max_send_message_length", MAX_EVENT_BYTES),
        ("grpc.max_allowed_incoming_connections", config.grpc_max_connections),
        ("grpc.server.max_pending_requests", MAX_UNREAD_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", MAX_UNREAD_CALLS),
        ("grpc.server_max_unrequested_time_in_server", UNREAD_CALL_S),
        ("grpc.max_concurrent_streams", most_calls(config)),
        ("grpc.http2.lookahead_bytes", MAX_UNREAD_BYTES),
        ("grpc.http2.bdp_probe", 0),
        # Else calls that have ended and are not forgotten yet count too: new ones are refused without a word.
        ("grpc.http.overload_protection", 0),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
        ("grpc.http2.settings_timeout", HANDSHAKE_TIMEOUT_MS),
        ("grpc.max_connection_idle_ms", IDLE_CONNECTION_MS),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_CLIENT_PING_MS),
        ("grpc.so_reuseport", int(config.share_ports)),
    ]
