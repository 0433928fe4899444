"""Listen and accept in a network in memory: what a loop is asked for by who has a listening socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
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
        self.backlog: asyncio.Queue[MemorySocket] = asyncio.Queue(MAX_BACKLOG)
        self._network = network
        network.listen(host, port, lambda: MemorySocket(self.backlog))

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def close(self) -> None:
        self._network.stop_listening(*self.address)


class MemorySocket(asyncio.Protocol):
    """A connection that was accepted, or waits for that. It is not read until a protocol has it."""

    def __init__(self, backlog: asyncio.Queue[MemorySocket]) -> None:
        self._backlog = backlog
        self.transport: MemoryTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, MemoryTransport)
        self.transport = transport
        if self._backlog.full():
            transport.abort()
            return
        transport.pause_reading()
        self._backlog.put_nowait(self)

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
        loop.sock_accept = self.sock_accept
        loop.connect_accepted_socket = self.connect_accepted_socket

    def listen(self, _family: int, address: tuple[str, int], *, shared: bool) -> MemoryListener:
        """Stand in for who makes a listening socket. Raises OSError where the address is in use."""
        if shared:
            raise OSError("a port in memory is nobody's but its gateway's")
        return MemoryListener(self._network, *address)

    async def getaddrinfo(self, host: str, port: int, **_: object) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    async def sock_accept(self, listener: MemoryListener) -> tuple[MemorySocket, object]:
        accepted = await listener.backlog.get()
        return accepted, accepted.transport.get_extra_info("peername")

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
