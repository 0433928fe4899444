"""Clients of an edge that connect anew, with a TLS session that they have, or keep their connection."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shared.errors import Unavailable

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 65_536
ASK = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
GRPC_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
"""Each channel has a connection of its own."""


@dataclass(slots=True)
class HttpClient:
    """Asks for a page of health. `certificate`: the authority of a TLS edge, None for one without TLS."""

    address: tuple[str, int]
    certificate: Path | None = None
    resumes: bool = False
    keeps: bool = False
    resumed: int = 0
    """Handshakes that went on with a session."""
    _context: ssl.SSLContext | None = field(default=None, init=False)
    _session: ssl.SSLSession | None = field(default=None, init=False)
    _kept: socket.socket | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.certificate is not None:
            self._context = ssl.create_default_context(cafile=str(self.certificate))

    def ask(self) -> None:
        """Connect, where there is no connection to keep, and read one answer. Raises OSError."""
        connection = self._kept or self._connect()
        connection.sendall(ASK)
        _read_answer(connection)
        if isinstance(connection, ssl.SSLSocket):
            self.resumed += bool(connection.session_reused) and self._kept is None
            if self.resumes:
                self._session = connection.session  # the ticket has come with the answer
        if self.keeps:
            self._kept = connection
        else:
            connection.close()

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()

    def _connect(self) -> socket.socket:
        plain = socket.create_connection(self.address, TIMEOUT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is None:
            return plain
        try:
            return self._context.wrap_socket(plain, server_hostname=self.address[0], session=self._session)
        except BaseException:
            plain.close()
            raise


def _read_answer(connection: socket.socket) -> None:
    read = b""
    while b"\r\n\r\n" not in read:
        read += _some(connection, read)
    head, _, body = read.partition(b"\r\n\r\n")
    lengths = [
        line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    ]
    while len(body) < int(lengths[0]):
        body += _some(connection, body)
    if not head.startswith(b"HTTP/1.1 200"):
        raise Unavailable(f"the edge answered {head[:40]!r}")


def _some(connection: socket.socket, read: bytes) -> bytes:
    more = connection.recv(MAX_ANSWER_BYTES)
    if not more or len(read) > MAX_ANSWER_BYTES:
        raise Unavailable("the edge broke its answer off")
    return more


class GrpcClient:
    """Asks for health over channels of its own; the library's server resumes no TLS session."""

    def __init__(self, address: str, certificate: Path | None = None, *, keeps: bool = False) -> None:
        self._address = address
        self._credentials = (
            None if certificate is None else grpc.ssl_channel_credentials(certificate.read_bytes())
        )
        self._keeps = keeps
        self._kept: grpc.aio.Channel | None = None

    async def ask(self) -> None:
        """Raises AioRpcError."""
        channel = self._kept or self._channel()
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        if self._keeps:
            self._kept = channel
        else:
            await channel.close(None)

    async def close(self) -> None:
        if self._kept is not None:
            await self._kept.close(None)

    def _channel(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options=GRPC_OPTIONS)
        return grpc.aio.secure_channel(self._address, self._credentials, options=GRPC_OPTIONS)


async def ask_in_thread(client: HttpClient, times: int) -> None:
    """Ask one after another, beside the loop."""

    def ask_all() -> None:
        for _ in range(times):
            client.ask()

    await asyncio.to_thread(ask_all)
