"""Nats-servers that are one bus, and what may befall them: killed, paused, rolled, cut off, new passwords.

Each dials each other one through a link that can be cut, so that servers lose each other while their clients
keep them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import permutations
from pathlib import Path

from services.launcher.network.ports import free_ports
from shared.bus.cluster_watch import servers_reached_from
from shared.bus.nats_server import NatsServer
from shared.tasks import cancel_until_done
from tests.support.wait import until

HOST = "127.0.0.1"
READ_BYTES = 1 << 18
NOWHERE = f"{HOST}:1"
"""What a server tells others of where it is: nobody passes the links by."""
ROUTE_PING_S = 1
WHOLE_TIMEOUT_S = 60


class RouteLink:
    """The way on which one server dials another."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open = asyncio.Event()
        self._open.set()
        self._refuses = False
        self._calls: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[str]:
        """The address at which it is dialled."""
        listener = await asyncio.start_server(self._connected, HOST, 0, limit=READ_BYTES)
        host, port = listener.sockets[0].getsockname()
        try:
            yield f"{host}:{port}"
        finally:
            listener.close()
            await cancel_until_done(*self._calls)

    def cut(self, *, silently: bool) -> None:
        """Close what is open, or let bytes go neither way while nobody is told, as when a switch dies."""
        self._open.clear()
        if not silently:
            self._refuses = True
            for call in self._calls:
                call.cancel()

    def mend(self) -> None:
        self._refuses = False
        self._open.set()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        call = asyncio.get_running_loop().create_task(self._carry(reader, writer))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _carry(self, caller: asyncio.StreamReader, to_caller: asyncio.StreamWriter) -> None:
        writers = [to_caller]
        try:
            await self._open.wait()
            server, to_server = await asyncio.open_connection(HOST, self._port, limit=READ_BYTES)
            writers.append(to_server)
            async with asyncio.TaskGroup() as both:  # the end of one direction is the end of the connection
                both.create_task(self._forward(caller, to_server))
                both.create_task(self._forward(server, to_caller))
        except* (OSError, EOFError):
            pass  # one of the two is gone; the other sees its connection close
        finally:
            for writer in writers:
                writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(READ_BYTES):
            await self._open.wait()
            writer.write(data)
            await writer.drain()
        raise EOFError


class ClusterServer(NatsServer):
    """One server, which can be told other passwords while it runs."""

    def reload(self, before: str, after: str) -> None:
        """Write `after` in the place of `before` into its configuration, and have it read that."""
        assert self._folder is not None
        self._settings = self._settings.replace(before, after)
        (Path(self._folder.name) / "nats.conf").write_text(self._settings)
        os.kill(self.pid, signal.SIGHUP)

    @contextmanager
    def paused(self) -> Iterator[None]:
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)


class NatsCluster:
    """`users` is the part of the servers' configuration that says who is let in, "" for everybody."""

    def __init__(self, size: int = 3, users: str = "") -> None:
        self._ports = free_ports(HOST, size)
        self._users = users
        self._links = {
            (dialling, dialled): RouteLink(self._ports[dialled])
            for dialling, dialled in permutations(range(size), 2)
        }
        self.servers: list[ClusterServer] = []

    @property
    def url(self) -> str:
        """All addresses, as services are told them."""
        return ",".join(server.url for server in self.servers)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[NatsCluster]:
        async with AsyncExitStack() as stack:
            routes: dict[int, list[str]] = {number: [] for number in range(len(self._ports))}
            for (dialling, _), link in self._links.items():
                routes[dialling].append(f'"nats://{await stack.enter_async_context(link.laid())}"')
            for number, port in enumerate(self._ports):
                server = ClusterServer(
                    extra_config=f"{self._users}\nserver_name: server-{number}\n"
                    f'cluster {{ name: fleet, listen: "{HOST}:{port}", advertise: "{NOWHERE}", '
                    f'ping_interval: "{ROUTE_PING_S}s", ping_max: 2, routes: [{", ".join(routes[number])}] }}'
                )
                self.servers.append(server)
                stack.push_async_callback(server.stop)
                await server.start()
            yield self

    async def until_whole(self) -> None:
        """Wait until each server reaches all."""

        async def whole() -> bool:
            places = [f"{HOST}:{server.port}" for server in self.servers]
            return {await servers_reached_from(place) for place in places} == {len(places)}

        await until(whole, timeout_s=WHOLE_TIMEOUT_S)

    async def restart(self, number: int) -> None:
        """Kill a server, and start it again at the same address."""
        await self.servers[number].kill()
        await self.servers[number].start()

    def cut_off(self, number: int, *, silently: bool = False) -> None:
        """Keep a server from all others; whoever is connected to it stays so."""
        for pair, link in self._links.items():
            if number in pair:
                link.cut(silently=silently)

    def mend(self) -> None:
        for link in self._links.values():
            link.mend()
