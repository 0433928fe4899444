"""The network in memory between nodes: each end of a connection runs in its own node, and bytes go by the
world's time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random
from typing import Any

from tests.simulation.bus.latency import Latency
from tests.simulation.bus.network import Cable, Network, ProtocolFactory
from tests.simulation.bus.pipe import Pipe, Receiver
from tests.simulation.bus.trace import Trace
from tests.simulation.bus.transport import MemoryTransport
from tests.simulation.world import World


class NodeNetwork(Network):
    """Connect nodes: each end of a connection runs in the node that dialled or listened."""

    def __init__(self, world: World, latency: Latency) -> None:
        super().__init__(Random(f"network {world.seed}"), latency, Trace(is_kept=False))
        self.world = world
        self._listening: dict[tuple[str, int], Context] = {}
        self._server = Context()
        loop: Any = world.loop
        loop.create_connection = self.create_connection

    def listen(self, host: str, port: int, factory: ProtocolFactory) -> None:
        super().listen(host, port, factory)
        self._listening[host, port] = copy_context()

    def close_process(self, place: str) -> None:
        """End what a process had, as a kernel does: nobody listens for it, its connections are reset."""
        for host, port in [address for address in self._listening if address[0] == place]:
            self.stop_listening(host, port)
        for cable in self.cables():
            if place in (cable.place, cable.address[0]):
                cable.cut()

    def stop_listening(self, host: str, port: int) -> None:
        super().stop_listening(host, port)
        self._listening.pop((host, port), None)

    def _lay(
        self,
        place: str,
        address: tuple[str, int],
        client: asyncio.BaseProtocol,
        server: asyncio.BaseProtocol,
    ) -> Cable:
        self._server = self._listening[address]
        return super()._lay(place, address, client, server)

    def _pipe(self, reader: MemoryTransport, writer: MemoryTransport, *, to_server: bool) -> Pipe:
        client, server = copy_context(), self._server.copy()
        reads, writes = (server, client) if to_server else (client, server)
        return NodePipe(self._delay_s, _InContext(reader, reads), _later(writer.pour, writes))


class NodePipe(Pipe):
    """Whichever node touches it, its timers are the world's."""

    def _put(self, data: bytes | None, error: Exception | None) -> None:
        Context().run(super()._put, data, error)

    def _schedule(self) -> None:
        Context().run(super()._schedule)


class _InContext:
    """Hands over what arrives as a socket does: its node hears of it when it gets to it."""

    def __init__(self, receiver: Receiver, context: Context) -> None:
        self.arrived = _later(receiver.arrived, context)
        self.ended = _later(receiver.ended, context)


def _later(call: Callable[..., None], context: Context) -> Callable[..., None]:
    def begin(*args: Any) -> None:
        asyncio.get_running_loop().call_soon(call, *args, context=context)

    return begin
