"""Clients of a bus for tests: nats-py as it is, and bytes as they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from tests.support.wait import until

ANSWER_S = 20
"""Far longer than any answer takes."""
CONNECT = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1}


@dataclass(frozen=True, slots=True)
class Got:
    """A message as a test compares it."""

    subject: str
    data: bytes
    reply: str = ""
    headers: dict[str, str] | None = None


@dataclass
class Ear:
    """All that one subscription has heard, in order."""

    subscription: Subscription
    heard: list[Got]

    @property
    def data(self) -> list[bytes]:
        return [one.data for one in self.heard]

    async def has(self, count: int) -> list[bytes]:
        await until(lambda: len(self.heard) >= count)
        return self.data


@dataclass
class Told:
    """A nats-py client, and what its callbacks were told."""

    client: Client
    errors: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    async def settle(self) -> None:
        """Return when the server has dealt with all that was sent, and what it said to that is here."""
        await self.client.flush(ANSWER_S)
        await self.client.flush(ANSWER_S)

    async def hear(self, subject: str, **options: Any) -> Ear:
        heard: list[Got] = []

        async def take(message: Msg) -> None:
            heard.append(Got(message.subject, message.data, message.reply, message.headers))

        ear = Ear(await self.client.subscribe(subject, cb=take, **options), heard)
        await self.settle()
        return ear

    async def finds_out(self) -> None:
        """Ping fast until the connection is taken for stale, and seldom again from then on."""
        client = self.client
        usual_s, client.options["ping_interval"] = client.options["ping_interval"], 0.02
        assert client._ping_interval_task is not None
        client._ping_interval_task.cancel()
        client._ping_interval_task = asyncio.create_task(client._ping_interval())
        await until(lambda: self.events == ["disconnected"])
        client.options["ping_interval"] = usual_s

    async def say(self, subject: str, *data: bytes, **options: Any) -> None:
        """Publish, and return when all of it is delivered here and on its way elsewhere."""
        for one in data or (b"",):
            await self.client.publish(subject, one, **options)
        await self.settle()


@asynccontextmanager
async def told(url: str, **options: Any) -> AsyncIterator[Told]:
    """A client that reconnects at once."""
    client = Told(Client())

    async def on_error(error: Exception) -> None:
        client.errors.append(str(error))

    def event(name: str) -> Any:
        async def note() -> None:
            client.events.append(name)

        return note

    client.client = await nats.connect(
        url,
        error_cb=on_error,
        disconnected_cb=event("disconnected"),
        reconnected_cb=event("reconnected"),
        closed_cb=event("closed"),
        lame_duck_mode_cb=event("lame duck"),
        **{"reconnect_time_wait": 0.02, "max_reconnect_attempts": -1, **options},
    )
    try:
        yield client
    finally:
        await client.client.close()


class Bytes:
    """A client that says what it is told to, and hears lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.info: dict[str, Any] = {}

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    def connect(self, **options: Any) -> None:
        self.say(b"CONNECT " + json.dumps({**CONNECT, **options}).encode() + b"\r\n")

    async def line(self) -> bytes | None:
        """Return the next line but for INFO and PING; None at the end."""
        async with asyncio.timeout(ANSWER_S):
            while line := await self.reader.readline():
                if not line.startswith((b"INFO", b"PING")):
                    return line.rstrip(b"\r\n")
        return None

    async def rest(self) -> list[bytes]:
        """Return the lines up to the end of the connection, but for INFO and PING."""
        lines: list[bytes] = []
        while (line := await self.line()) is not None:
            lines.append(line)
        return lines

    async def pong(self) -> list[bytes]:
        """Return the lines up to the answer to a PING of ours."""
        self.say(b"PING\r\n")
        lines: list[bytes] = []
        while (line := await self.line()) != b"PONG":
            assert line is not None, lines
            lines.append(line)
        return lines


@asynccontextmanager
async def raw(url: str, **options: Any) -> AsyncIterator[Bytes]:
    """A connection that has read INFO; with options it has said CONNECT with them."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    client = Bytes(reader, writer)
    client.info = json.loads((await reader.readline()).removeprefix(b"INFO "))
    if options:
        client.connect(**options)
    try:
        yield client
    finally:
        writer.close()
