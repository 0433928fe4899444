"""TCP without sockets: what `loop.create_connection` dials in a simulation.

That call is the seam: nats-py, and whatever else opens a connection in the loop, runs as it is. A connection
belongs to the place that its task runs at (`Network.at`), so that one instance can be cut off alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from random import Random
from typing import Any

from tests.simulation.bus.latency import Latency
from tests.simulation.bus.pipe import Pipe
from tests.simulation.bus.trace import Trace
from tests.simulation.bus.transport import MemoryTransport

_PLACE: ContextVar[str] = ContextVar("place", default="")

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class Cable:
    """One connection between a place and who listens. `name` is the same in every run of a seed."""

    def __init__(self, name: str, place: str, address: tuple[str, int]) -> None:
        self.name = name
        self.place = place
        self.address = address
        self.to_server: Pipe
        self.to_client: Pipe
        self.client: MemoryTransport
        self.server: MemoryTransport

    @property
    def open(self) -> bool:
        return not (self.client.is_closing() or self.server.is_closing())

    @property
    def over(self) -> bool:
        """Return whether both ends know that it is closed: one that is held may not for long."""
        return self.client.lost and self.server.lost

    def hold(self) -> None:
        """Let bytes through in no direction; no end is told anything."""
        self.to_server.hold()
        self.to_client.hold()

    def release(self) -> None:
        self.to_server.release()
        self.to_client.release()

    def cut(self) -> int:
        """Lose what is on its way, in both directions, and reset both ends; return the bytes lost."""
        lost = self.to_server.drop() + self.to_client.drop()
        for pipe in (self.to_server, self.to_client):
            pipe.end(ConnectionResetError("the connection was cut"))
        return lost


class Network:
    """`random` draws latencies alone, so that other draws do not move them."""

    def __init__(self, random: Random, latency: Latency | None = None, trace: Trace | None = None) -> None:
        self.latency = latency or Latency()
        self.trace = trace or Trace()
        self._random = random
        self._listeners: dict[tuple[str, int], ProtocolFactory] = {}
        self._cables: list[Cable] = []
        self._cut_off: dict[str, int] = {}
        self._reachable: dict[str, asyncio.Event] = {}
        self._dialled = 0

    # ---- who is where ---------------------------------------------------------------------------

    @contextmanager
    def joined(self) -> Iterator[Network]:
        """The running loop dials here, and nowhere else, in this block."""
        loop: Any = asyncio.get_running_loop()
        loop.create_connection = self.create_connection
        try:
            yield self
        finally:
            del loop.create_connection

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Dial from `place` in this block, and in tasks that are begun in it."""
        token = _PLACE.set(place)
        try:
            yield
        finally:
            _PLACE.reset(token)

    def listen(self, host: str, port: int, factory: ProtocolFactory) -> None:
        if (host, port) in self._listeners:
            raise OSError(f"somebody listens at {host}:{port} already")
        self._listeners[host, port] = factory

    def stop_listening(self, host: str, port: int) -> None:
        self._listeners.pop((host, port), None)

    def cables(self, place: str | None = None) -> list[Cable]:
        """The open connections, of one place alone where that is given, the oldest first."""
        self._cables = [cable for cable in self._cables if not cable.over]
        return [cable for cable in self._cables if cable.open and place in (None, cable.place)]

    # ---- faults ---------------------------------------------------------------------------------

    def partition(self, place: str) -> None:
        """Cut a place off: its connections carry nothing and stay open, new ones do not come about."""
        self.trace.note("partition", place)
        self._cut_off[place] = self._cut_off.get(place, 0) + 1
        for cable in self._cables:
            if cable.place == place:
                cable.hold()

    def heal(self, place: str) -> None:
        """Undo one partition of a place: what waited arrives late."""
        self.trace.note("heal", place)
        self._cut_off[place] -= 1
        for cable in self._cables:
            if cable.place == place:
                cable.release()
        if not self._cut_off[place] and place in self._reachable:
            self._reachable.pop(place).set()

    # ---- dialling -------------------------------------------------------------------------------

    async def create_connection(
        self, factory: ProtocolFactory, host: str = "", port: int = 0, *, ssl: object = None, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Stand in for a loop's `create_connection`. Raises ConnectionRefusedError where nobody listens."""
        if ssl is not None:
            raise ValueError("there is no TLS in a network in memory")
        place = _PLACE.get()
        while self._cut_off.get(place):
            await self._reachable.setdefault(place, asyncio.Event()).wait()
        await asyncio.sleep(self._delay_s() + self._delay_s())
        accept = self._listeners.get((host, port))
        if accept is None:
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        cable = self._lay(place, (host, port), factory(), accept())
        cable.server.get_protocol().connection_made(cable.server)
        cable.client.get_protocol().connection_made(cable.client)
        return cable.client, cable.client.get_protocol()

    def _lay(
        self,
        place: str,
        address: tuple[str, int],
        client: asyncio.BaseProtocol,
        server: asyncio.BaseProtocol,
    ) -> Cable:
        self._dialled += 1
        cable = Cable(f"{place}#{self._dialled}", place, address)
        self.trace.note("dialled", cable.name)
        cable.client = MemoryTransport(client, {"peername": address, "cable": cable})
        cable.server = MemoryTransport(server, {"peername": (place, self._dialled), "cable": cable})
        cable.to_server = self._pipe(cable.server, cable.client, to_server=True)
        cable.to_client = self._pipe(cable.client, cable.server, to_server=False)
        cable.client.outgoing = cable.server.incoming = cable.to_server
        cable.client.incoming = cable.server.outgoing = cable.to_client
        for _ in range(self._cut_off.get(place, 0)):
            cable.hold()
        self._cables.append(cable)
        return cable

    def _pipe(self, reader: MemoryTransport, writer: MemoryTransport, *, to_server: bool) -> Pipe:  # noqa: ARG002 - for networks where it matters
        return Pipe(self._delay_s, reader, partial(_pour, writer))

    def _delay_s(self) -> float:
        return self.latency.draw_s(self._random)


def _pour(transport: MemoryTransport) -> None:
    transport.pour()
