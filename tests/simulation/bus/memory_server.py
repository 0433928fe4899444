"""A nats-server in memory, for the clients of one network."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.bus.interest import Interest, ServerSubscription
from tests.simulation.bus.network import Network
from tests.simulation.bus.permitted import Permitted
from tests.simulation.bus.server_connection import ServerConnection
from tests.simulation.bus.settings import ServerSettings

VERSION = "2.15.1"
"""The real server that the suite holds this one to."""
OnDelivered = Callable[[ServerConnection, bytes, bytes], None]
"""(client, subject, payload)"""
LAME_DUCK_STEP_S = 1.0
"""The longest pause between two clients that a lame duck closes."""


class MemoryServer:
    """Starts, stops, is killed and started again at one address, as a `NatsServer` is.

    `random` draws what the real one leaves to chance: which member of a queue group gets a message, the order
    of subscriptions, the first ping.
    """

    def __init__(
        self,
        network: Network,
        random: Random,
        settings: ServerSettings | None = None,
        *,
        host: str = "nats.sim",
        port: int = 4222,
    ) -> None:
        self.settings = settings or ServerSettings()
        self.random = random
        self.trace = network.trace
        self.interest = Interest()
        self.host = host
        self.port = port
        self._network = network
        self.on_delivered: list[OnDelivered] = []
        """Called for each message that was written for a client; they may close that."""
        self._clients: dict[ServerConnection, None] = {}
        self._connected = 0
        self._running = False
        self._lame = False

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    @property
    def clients(self) -> list[ServerConnection]:
        """The clients of this moment, in the order in which they came."""
        return list(self._clients)

    # ---- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        self.trace.note("server starts")
        self._network.listen(self.host, self.port, self._accept)
        self._running, self._lame = True, False

    async def stop(self) -> None:
        """Close all clients, behind what was written for them."""
        self._end()
        for client in self.clients:
            client.close()

    async def kill(self) -> None:
        """End as a process that is killed: what is on its way to or from it is lost."""
        self._end()
        for client in self.clients:
            client.lose()

    def _end(self) -> None:
        self.trace.note("server ends")
        self._network.stop_listening(self.host, self.port)
        self._running = False

    async def reload(self, settings: ServerSettings) -> None:
        """Take new users: who is none of them any more is closed, who may read less loses subscriptions."""
        self.settings = settings
        for client in self.clients:
            if not self.lets_in(client):
                client.refuse("Authorization Violation")
                continue
            for one in list(client.subscriptions.values()):
                if not client.permitted.may_subscribe(one.pattern):
                    client.end_subscription(one)
                    client.say_error(
                        f'Permissions Violation for Subscription to "{one.pattern.decode()}" '
                        f'(sid "{one.sid.decode()}")'
                    )

    async def lame_duck(self) -> None:
        """Take no new client, tell those that are there, close them one by one, end."""
        self._network.stop_listening(self.host, self.port)
        self._lame = True
        for client in self.clients:
            client.send_info()
        await asyncio.sleep(self.settings.lame_duck_grace_s)
        for client in self.clients:
            client.close()
            if self._clients:
                await asyncio.sleep(LAME_DUCK_STEP_S * self.random.uniform(0.5, 1))
        self._running = False

    # ---- clients --------------------------------------------------------------------------------

    def _accept(self) -> ServerConnection:
        self._connected += 1
        client = ServerConnection(self, self._connected)
        self._clients[client] = None
        return client

    def gone(self, client: ServerConnection) -> None:
        self._clients.pop(client, None)

    def lets_in(self, client: ServerConnection) -> bool:
        """Return whether a client has said who it is; it has the rights of that user then."""
        if not self.settings.users:
            return True
        for user, password in self.settings.users:
            if client.user == user.name and client.password == password:
                if client.permitted.user != user:
                    client.permitted = Permitted(user)
                return True
        return False

    def info(self, client: ServerConnection) -> dict[str, Any]:
        """Return what the server says of itself."""
        said: dict[str, Any] = {
            "server_id": "MEMORY",
            "server_name": "memory",
            "version": VERSION,
            "proto": 1,
            "host": self.host,
            "port": self.port,
            "headers": True,
            "max_payload": self.settings.max_payload_bytes,
            "client_id": client.number,
            "client_ip": "127.0.0.1",
        }
        if self.settings.users:
            said["auth_required"] = True
        if self._lame:
            said["ldm"] = True
        return said

    # ---- messages -------------------------------------------------------------------------------

    def route(
        self, sender: ServerConnection, subject: bytes, reply: bytes, payload: bytes, header_bytes: int
    ) -> None:
        """Deliver a message to all that want it, or tell its sender that nobody does."""
        message = (subject, reply, payload, header_bytes)
        matches = self.interest.of(subject)
        delivered = False
        for one in self._in_any_order(matches.alone):
            delivered = self._deliver(sender, one, *message) or delivered
        for members in matches.queues:
            first = self.random.randrange(len(members)) if len(members) > 1 else 0
            delivered = (
                any(self._deliver(sender, one, *message) for one in members[first:] + members[:first])
                or delivered
            )
        if not delivered and reply and sender.no_responders:
            self._say_that_nobody_listens(sender, subject, reply)

    def _in_any_order(self, subscriptions: tuple[ServerSubscription, ...]) -> list[ServerSubscription]:
        if len(subscriptions) < 2:
            return list(subscriptions)
        return self.random.sample(subscriptions, len(subscriptions))

    def _deliver(
        self,
        sender: ServerConnection,
        to: ServerSubscription,
        subject: bytes,
        reply: bytes,
        payload: bytes,
        header_bytes: int,
    ) -> bool:
        client = to.client
        if not to.open or client.closed or (client is sender and not client.echo):
            return False
        to.delivered += 1
        if self.trace.is_kept:
            self.trace.note(
                "delivers", client.number, client.name, to.sid.decode(), subject.decode(errors="replace"),
                hashlib.blake2b(payload, digest_size=8).hexdigest(),
            )  # fmt: skip
        client.deliver(to, subject, reply, payload, header_bytes)
        for tell in tuple(self.on_delivered):
            tell(client, subject, payload)
        if to.limit and to.delivered >= to.limit:
            client.end_subscription(to)
        return True

    def _say_that_nobody_listens(self, sender: ServerConnection, subject: bytes, reply: bytes) -> None:
        for one in self.interest.of(reply).alone:
            if one.client is sender:
                headers = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % subject
                sender.deliver(one, reply, b"", headers, len(headers))
                return
