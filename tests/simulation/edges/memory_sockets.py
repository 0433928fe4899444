"""Listen and accept in a network in memory: what a loop is asked for by who has a listening socket."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from tests.simulation.bus.network import Network
from tests.simulation.bus.transport import MemoryTransport
from tests.simulation.node_network import NodeNetwork

MAX_BACKLOG = 1024
"""The most connections that wait to be accepted; of more nobody hears."""


class MemoryListener:
    """A listening socket. It belongs to the node that made it, and is closed with its process."""

    def __init__(self, network: Network, host: str, port: int) -> None:
        """Raises OSError where somebody listens there already."""
        self.address = (host, port)
        self._backlog: deque[MemorySocket] = deque()
        self._network = network
        self._reader: Callable[[], object] | None = None
        network.listen(host, port, lambda: MemorySocket(self.put))

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def put(self, connection: MemorySocket) -> bool:
        """Return whether there is room for one that waits."""
        if len(self._backlog) >= MAX_BACKLOG:
            return False
        self._backlog.append(connection)
        self._tell()
        return True

    def accept(self) -> tuple[MemorySocket, object]:
        """Raises BlockingIOError where nobody waits."""
        if not self._backlog:
            raise BlockingIOError
        accepted = self._backlog.popleft()
        return accepted, accepted.transport.get_extra_info("peername")

    def set_reader(self, reader: Callable[[], object] | None) -> None:
        """Have `reader` called, in the context of who says so, as long as somebody waits."""
        self._reader, self._context = reader, copy_context()
        self._tell()

    def close(self) -> None:
        self._network.stop_listening(*self.address)
        for waits in self._backlog:
            waits.close()
        self._backlog.clear()

    def _tell(self) -> None:
        if self._backlog and self._reader is not None:
            asyncio.get_running_loop().call_soon(self._read, context=self._context)

    def _read(self) -> None:
        if self._backlog and self._reader is not None:
            self._reader()
            self._tell()


class MemorySocket(asyncio.Protocol):
    """A connection that was accepted, or waits for that. It is not read until a protocol has it."""

    def __init__(self, put: Callable[[MemorySocket], bool]) -> None:
        self._put = put
        self.transport: MemoryTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, MemoryTransport)
        self.transport = transport
        transport.pause_reading()
        if not self._put(self):
            transport.abort()

    def hand_to(self, protocol: asyncio.BaseProtocol) -> None:
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        self.transport.resume_reading()

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def close(self) -> None:
        self.transport.abort()


class MemorySockets:
    """Stands in for a loop where it is asked about sockets."""

    def __init__(self, network: NodeNetwork) -> None:
        self._network = network
        loop: Any = network.world.loop
        loop.getaddrinfo = self.getaddrinfo
        loop.add_reader, loop.remove_reader = self.add_reader, self.remove_reader
        loop.connect_accepted_socket = self.connect_accepted_socket

    def listen(self, _family: int, address: tuple[str, int], *, shared: bool) -> MemoryListener:
        """Stand in for who makes a listening socket. Raises OSError where the address is in use."""
        if shared:
            raise OSError("a port in memory is nobody's but its gateway's")
        return MemoryListener(self._network, *address)

    async def getaddrinfo(self, host: str, port: int, **_: object) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    def add_reader(self, listener: MemoryListener, reader: Callable[..., object], *args: Any) -> None:
        listener.set_reader(partial(reader, *args))

    def remove_reader(self, listener: MemoryListener) -> None:
        listener.set_reader(None)

    async def connect_accepted_socket(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        accepted: MemorySocket,
        *,
        ssl: object = None,
        **_: object,
    ) -> tuple[MemoryTransport, asyncio.BaseProtocol]:
        if ssl is not None:
            raise ValueError("there is no TLS in a network in memory")
        protocol = factory()
        accepted.hand_to(protocol)
        return accepted.transport, protocol
