"""A nats-server with the users of a small stack, as `penstock up` makes them, and raw clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import nats
from nats.aio.client import Client

from shared.bus import Bus
from shared.bus.credentials import Credentials
from shared.bus.nats_server import NatsServer
from shared.bus.permissions import BusUser, authorization, operator_user, role_user
from shared.bus.subjects import answers
from shared.roles import ROLES

WITNESS = BusUser("witness", publish=(">",), subscribe=(">",), answers=False)
"""Sees and may say everything; no stack has such a user."""


def password_of(user: str) -> str:
    return f"password-of-{user}"


def users() -> list[BusUser]:
    """Two instances of every role, a user for every role as a whole, the operator, the witness."""
    instances = [role_user(role, f"{role}-{number}") for role in ROLES for number in (0, 1)]
    return [*instances, *(role_user(role) for role in ROLES), operator_user(), WITNESS]


@dataclass
class RawClient:
    """`refused` are the server's refusals, in small letters as nats-py gives them."""

    client: Client
    refused: list[str] = field(default_factory=list)

    async def settle(self) -> None:
        """Until the server has dealt with all that was sent; its refusals are here then."""
        await self.client.flush()
        await self.client.flush()


@dataclass(frozen=True)
class ClosedBus:
    url: str

    def credentials(self, user: str) -> Credentials:
        return Credentials(user, password_of(user))

    @asynccontextmanager
    async def raw(self, user: str) -> AsyncIterator[RawClient]:
        raw = RawClient(Client())

        async def on_error(error: Exception) -> None:
            raw.refused.append(str(error))

        raw.client = await nats.connect(
            self.url,
            user=user,
            password=password_of(user),
            error_cb=on_error,
            inbox_prefix=answers(user),
            allow_reconnect=False,
        )
        try:
            yield raw
        finally:
            await raw.client.close()

    @asynccontextmanager
    async def bus(self, user: str) -> AsyncIterator[Bus]:
        bus = await Bus.connect(self.url, name=user, credentials=self.credentials(user))
        try:
            yield bus
        finally:
            await bus.close()


@asynccontextmanager
async def closed_bus() -> AsyncIterator[ClosedBus]:
    config = authorization((user, password_of(user.name)) for user in users())
    server = NatsServer(extra_config=config)
    await server.start()
    try:
        yield ClosedBus(server.url)
    finally:
        await server.stop()
