"""A gRPC server with the methods of `grpc.aio.Server`, over the native codec and asyncio's transports."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

from shared.accepting import Accepting, close_all, listening_socket
from shared.http2.grpc_call import GrpcCall
from shared.http2.http2_connection import Http2Connection
from shared.http2.limits import ServerLimits
from shared.http2.method_call import run_call, through
from shared.tasks import Tasks

ACCEPTED_AT_ONCE = 64
"""The most connections that are taken in one turn of the loop."""
CANCELLED_S = 1.0
"""Methods that were cancelled end within so much."""


class GrpcServer:
    """It serves in the loop that it is started in. `shared`: others may listen at the same port."""

    def __init__(
        self,
        limits: ServerLimits,
        interceptors: Sequence[grpc.aio.ServerInterceptor[Any, Any]] = (),
        *,
        shared: bool = False,
    ) -> None:
        self._limits = limits
        self._shared = shared
        self._find = through(interceptors, self._find_handler)
        self._handlers: dict[str, Any] = {}
        self._generic: list[grpc.GenericRpcHandler[Any, Any]] = []
        self._doors: list[Accepting] = []
        self._connections: set[Http2Connection] = set()
        self._places = 0
        self._tasks = Tasks()
        self._idle = asyncio.Event()
        self._idle.set()
        self._calls = 0
        self._stopping = False

    def add_generic_rpc_handlers(
        self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler[Any, Any]]
    ) -> None:
        self._generic += generic_rpc_handlers

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        self._handlers |= {f"/{service_name}/{name}": handler for name, handler in method_handlers.items()}

    def add_insecure_port(self, address: str) -> int:
        """Listen at HOST:PORT and return the port. Raises RuntimeError where it cannot be had."""
        return self._add_port(address, None)

    def add_secure_port(self, address: str, tls: ssl.SSLContext) -> int:
        """The same with TLS, whose context agrees to HTTP/2 by ALPN."""
        return self._add_port(address, tls)

    async def start(self) -> None:
        for door in self._doors:
            door.start()

    async def stop(self, grace: float | None) -> None:
        """Listen no more and wait so long for calls that are open; then cancel them. Of several that stop,
        the first whose time is over does that."""
        self._stopping = True
        for door in self._doors:
            door.stop()
        for connection in [*self._connections]:
            connection.leave()
        if grace:
            with contextlib.suppress(TimeoutError):  # what is left is cancelled
                async with asyncio.timeout(grace):
                    await self._idle.wait()
        for connection in [*self._connections]:
            for call in connection.calls:
                call.end_with(grpc.StatusCode.UNAVAILABLE, "the server is stopping: ask another one")
            connection.close()
        await self._tasks.finish(CANCELLED_S)

    def _add_port(self, address: str, tls: ssl.SSLContext | None) -> int:
        host, _, port = address.rpartition(":")
        try:
            sockets = listening_sockets(host.strip("[]"), int(port), shared=self._shared)
        except OSError as error:
            raise RuntimeError(f"cannot listen at {address}: {error.strerror}") from error
        door = Accepting(sockets, lambda connection: self._take(connection, tls), at_once=ACCEPTED_AT_ONCE)
        self._doors.append(door)
        return int(sockets[0].getsockname()[1])

    def _take(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        """A connection counts from accept on, and one too many is closed at once."""
        if self._places >= self._limits.max_connections:
            connection.close()
            return
        self._places += 1
        self._tasks.start("grpc-connection", self._begin_connection(connection, tls))

    async def _begin_connection(self, accepted: socket.socket, tls: ssl.SSLContext | None) -> None:
        made: Http2Connection | None = None

        def make() -> Http2Connection:
            nonlocal made
            made = Http2Connection(self._limits, self._begin_call, self._forget)
            self._connections.add(made)
            return made

        try:
            accepted.setblocking(False)
            timeout_s = None if tls is None else self._limits.handshake_s
            await asyncio.get_running_loop().connect_accepted_socket(
                make, accepted, ssl=tls, ssl_handshake_timeout=timeout_s
            )
        except BaseException as error:
            accepted.close()
            if made is not None:
                self._forget(made)
            else:
                self._places -= 1
            if not isinstance(error, OSError):  # an ssl.SSLError is one
                raise

    def _forget(self, connection: Http2Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._places -= 1

    def _begin_call(self, call: GrpcCall, encoding: str) -> asyncio.Task[None]:
        self._calls += 1
        self._idle.clear()
        call.add_done_callback(self._end_call)
        return self._tasks.start(call.method, run_call(self._find, call, encoding))

    def _end_call(self, _call: GrpcCall) -> None:
        self._calls -= 1
        if not self._calls:
            self._idle.set()

    async def _find_handler(self, details: grpc.HandlerCallDetails) -> Any:
        found = self._handlers.get(details.method)
        if found is not None:
            return found
        return next((each for generic in self._generic if (each := generic.service(details))), None)


def listening_sockets(host: str, port: int, *, shared: bool) -> list[socket.socket]:
    """Return a socket for each address of the host, all at one port: 0 takes a free one. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    try:
        for family, *_, address in dict.fromkeys(found):
            place = (address[0], made[0].getsockname()[1] if made else port, *address[2:])
            made.append(listening_socket(family, place, shared=shared, both_families=address[0] == "::"))
    except OSError:
        close_all(made)
        raise
    return made
