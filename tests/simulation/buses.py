"""One bus, twice: a nats-server in a process, and the one in memory, with the same handles for tests."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Protocol

from shared.bus.nats_server import NatsServer
from tests.simulation.bus import MemoryServer, Network, ServerSettings


class EitherBus(Protocol):
    """What a test may do to a server, whichever it is."""

    @property
    def url(self) -> str: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def kill(self) -> None: ...
    async def reload(self, settings: ServerSettings) -> None: ...
    async def lame_duck(self) -> None:
        """Return soon: clients are told and closed one after another."""

    def url_from(self, place: str) -> AbstractAsyncContextManager[str]:
        """Return the address to dial in this block, from a place that can be cut off."""

    def partition(self, place: str) -> None: ...
    def heal(self, place: str) -> None: ...


class RealBus:
    """A nats-server process of its own."""

    def __init__(self, settings: ServerSettings) -> None:
        self._server = NatsServer(
            max_payload_bytes=settings.max_payload_bytes,
            write_deadline_s=settings.write_deadline_s,
            extra_config=settings.as_config(),
        )
        self._before = settings
        self._proxies: dict[str, HeldProxy] = {}

    @property
    def url(self) -> str:
        return self._server.url

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    async def kill(self) -> None:
        await self._server.kill()

    async def reload(self, settings: ServerSettings) -> None:
        assert self._server._folder is not None
        file = Path(self._server._folder.name) / "nats.conf"
        file.write_text(file.read_text().replace(self._before.as_config(), settings.as_config()))
        self._before = settings
        os.kill(self._server.pid, signal.SIGHUP)

    async def lame_duck(self) -> None:
        os.kill(self._server.pid, signal.SIGUSR2)

    @asynccontextmanager
    async def url_from(self, place: str) -> AsyncIterator[str]:
        async with HeldProxy(self._server.host, self._server.port).listening() as proxy:
            self._proxies[place] = proxy
            yield proxy.url

    def partition(self, place: str) -> None:
        self._proxies[place].hold()

    def heal(self, place: str) -> None:
        self._proxies[place].release()


class HeldProxy:
    """A way to a server that, while it is held, carries nothing: no byte, no end of a connection."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._ends: set[_ProxyEnd] = set()
        self._held = False
        self.url = ""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[HeldProxy]:
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(self._accept, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            listener.close()
            for end in list(self._ends):
                end.transport.abort()
            await asyncio.sleep(0)

    def hold(self) -> None:
        self._held = True
        for end in self._ends:
            end.transport.pause_reading()

    def release(self) -> None:
        self._held = False
        for end in self._ends:
            end.transport.resume_reading()

    def made(self, end: _ProxyEnd) -> None:
        self._ends.add(end)
        if self._held:
            end.transport.pause_reading()

    def lost(self, end: _ProxyEnd) -> None:
        self._ends.discard(end)

    def _accept(self) -> _ProxyEnd:
        client = _ProxyEnd(self)
        client.task = asyncio.get_running_loop().create_task(self._dial(client))
        return client

    async def _dial(self, client: _ProxyEnd) -> None:
        server = _ProxyEnd(self)
        server.other, client.other = client, server
        try:
            await asyncio.get_running_loop().create_connection(lambda: server, *self._server)
        except OSError:
            client.transport.abort()


class _ProxyEnd(asyncio.Protocol):
    def __init__(self, proxy: HeldProxy) -> None:
        self._proxy = proxy
        self._early = bytearray()
        self.other: _ProxyEnd | None = None
        self.task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._proxy.made(self)
        if self.other is not None and self.other._early:
            transport.write(self.other._early)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and hasattr(self.other, "transport"):
            self.other.transport.write(data)
        else:
            self._early += data

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._proxy.lost(self)
        if self.other is not None and hasattr(self.other, "transport"):
            self.other.transport.close()


class MemoryBus(MemoryServer):
    """A server in memory with its network."""

    def __init__(self, network: Network, settings: ServerSettings, seed: int) -> None:
        super().__init__(network, Random(f"server {seed}"), settings)
        self._ending: asyncio.Task[None] | None = None
        self.network = network

    async def lame_duck(self) -> None:
        self._ending = asyncio.create_task(super().lame_duck())

    @asynccontextmanager
    async def url_from(self, place: str) -> AsyncIterator[str]:
        with self.network.at(place):
            yield self.url

    def partition(self, place: str) -> None:
        self.network.partition(place)

    def heal(self, place: str) -> None:
        self.network.heal(place)


@asynccontextmanager
async def memory_bus(settings: ServerSettings, seed: int = 0) -> AsyncIterator[MemoryBus]:
    """A bus in memory that the running loop dials, not started yet."""
    network = Network(Random(f"network {seed}"))
    with network.joined():
        yield MemoryBus(network, settings, seed)
