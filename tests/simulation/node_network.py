"""The network in memory between nodes: each end of a connection runs in its own node, and bytes go by the
world's time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random
from typing import Any

from tests.simulation.bus.latency import Latency
from tests.simulation.bus.network import Network
from tests.simulation.bus.pipe import Pipe, Receiver
from tests.simulation.bus.transport import MemoryTransport
from tests.simulation.world import World


class NodeNetwork(Network):
    """What a node dials comes about in that node; servers listen outside of all nodes."""

    def __init__(self, world: World, latency: Latency) -> None:
        super().__init__(Random(f"network {world.seed}"), latency)
        loop: Any = world.loop
        loop.create_connection = self.create_connection

    def _pipe(self, reader: MemoryTransport, writer: MemoryTransport, *, to_server: bool) -> Pipe:
        client, server = copy_context(), Context()
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
