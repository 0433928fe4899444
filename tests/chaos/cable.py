"""A cable between the services and a nats-server that can be pulled for one instance.

While it is pulled, bytes go neither way and no end of a connection is told anything, as when a switch dies.
Plugged in again, what waited arrives late.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

READ_BYTES = 1 << 18
FIRST_LINE_TIMEOUT_S = 10.0


class Cable:
    """Every connection is of the instance that its CONNECT names, as `role/instance`."""

    def __init__(self, server_url: str) -> None:
        address = urlsplit(server_url)
        self._server = (address.hostname or "127.0.0.1", address.port or 4222)
        self._plugged: dict[str, asyncio.Event] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self.url = ""

    def pull(self, instance: str) -> None:
        self._gate(instance).clear()

    def plug_in(self, instance: str) -> None:
        self._gate(instance).set()

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[Cable]:
        listener = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=READ_BYTES)
        host, port = listener.sockets[0].getsockname()
        self.url = f"nats://{host}:{port}"
        try:
            yield self
        finally:
            listener.close()
            for call in self._calls:
                call.cancel()
            await asyncio.gather(*self._calls, return_exceptions=True)

    def _gate(self, instance: str) -> asyncio.Event:
        if instance not in self._plugged:
            self._plugged[instance] = asyncio.Event()
            self._plugged[instance].set()
        return self._plugged[instance]

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.get_running_loop().create_task(self._carry(reader, writer))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        writers = [to_client]
        try:
            server, to_server = await asyncio.open_connection(*self._server, limit=READ_BYTES)
            writers.append(to_server)
            async with asyncio.timeout(FIRST_LINE_TIMEOUT_S):
                to_client.write(await server.readuntil(b"\n"))  # INFO
                line = await client.readuntil(b"\n")  # CONNECT {…}
            gate = self._gate(_instance_of(line))
            await gate.wait()
            to_server.write(line)
            async with asyncio.TaskGroup() as both:  # the end of one direction is the end of the connection
                both.create_task(_forward(client, to_server, gate))
                both.create_task(_forward(server, to_client, gate))
        except* (OSError, EOFError, TimeoutError):
            pass  # one of the two is gone; the other sees its connection close
        finally:
            for writer in writers:
                writer.close()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
    while data := await reader.read(READ_BYTES):
        await gate.wait()
        writer.write(data)
        await writer.drain()
    raise EOFError


def _instance_of(line: bytes) -> str:
    """Of `role/instance` and `role/instance/kv`; tools have no role."""
    name = str(json.loads(line.removeprefix(b"CONNECT "))["name"])
    return name.split("/")[1] if "/" in name else name
