"""The edge is served by our own HTTP/2 where that is built and asked for, with the limits of grpcio's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.gateway.config import GatewayConfig
from services.gateway.grpc import edge_server
from services.gateway.grpc.edge_intake import CallIntake, most_calls
from shared.http2.grpc_server import GrpcServer
from shared.http2.native_codec import has_codec

INTAKE = cast("CallIntake", SimpleNamespace(intercept_service=print))


@pytest.mark.parametrize(("asked", "built"), [("native", True), ("native", False), ("grpcio", True)])
async def test_what_serves_is_what_was_asked_for_as_far_as_it_was_built(
    asked: str, built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_server, "has_codec", lambda: built)
    monkeypatch.setattr(edge_server, "wide_server", lambda *_: "gRPC's")
    server = edge_server._server(GatewayConfig(grpc_server=asked), INTAKE)
    assert isinstance(server, GrpcServer) == (asked == "native" and built)


@pytest.mark.skipif(not has_codec(), reason="HTTP/2's codec was not built")
def test_both_servers_have_the_same_limits() -> None:
    config = GatewayConfig(grpc_max_connections=7, max_request_bytes=2048, max_sessions=3)
    ours, theirs = edge_server._limits(config), dict(edge_server._options(config))
    same: dict[str, Any] = {
        "grpc.max_receive_message_length": ours.max_message_bytes,
        "grpc.max_send_message_length": ours.max_answer_bytes,
        "grpc.max_allowed_incoming_connections": ours.max_connections,
        "grpc.max_concurrent_streams": ours.max_calls,
        "grpc.http2.lookahead_bytes": ours.unread_bytes,
        "grpc.server_handshake_timeout_ms": 1000 * ours.handshake_s,
        "grpc.max_connection_idle_ms": 1000 * ours.idle_s,
        "grpc.keepalive_time_ms": 1000 * ours.keepalive_s,
        "grpc.keepalive_timeout_ms": 1000 * ours.keepalive_timeout_s,
        "grpc.http2.min_ping_interval_without_data_ms": ours.min_ping_ms,
    }
    assert same == {name: theirs[name] for name in same}
    assert ours.max_calls == most_calls(config)
