"""nats-py's client, except for four things.

It does not tell a password to a server that says it has no TLS. nats-py encrypts when the server asks for
it. A server in between that does not ask would get everything in the clear: who wants TLS must be able to
insist.

It hands messages over as it reads them. nats-py puts each into a queue, which a task of the subscription's
empties in a later turn of the loop: to receivers that never wait that is only a delay.

It does not close for good when the server takes back a login while it is connected, as one does that reads
new passwords: it connects again, and is let in or refused like others.

Nothing that is read ends its read loop, after which a connection looks open and hears nothing until, six
seconds later, its own pings tell. nats-py's ends over the PONG of a flush that was given up, and over a
subject that is no UTF-8.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from shared.bus.credentials import Credentials


class NoTls(nats.errors.Error):
    def __str__(self) -> str:
        return "it offers no TLS"


REFUSALS = ("authorization violation", "user authentication revoked", "user authentication expired")
"""The words of a server that does not let in, or no longer."""

Take = Callable[[str, str, bytes], Awaitable[None] | None]
"""Takes subject, reply subject and data of a message; what it returns is waited for before the next one."""


class BusClient(Client):
    """Given a TLS context, it talks TLS or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self._takers: dict[int, Take] = {}

    def hand_over(self, subscription: Subscription, take: Take) -> None:
        """Hand its messages to `take` from now on, all but those with headers, which no message of ours
        has."""
        self._takers[subscription._id] = take  # noqa: SLF001 - what messages name it by

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        take = self._takers.get(sid)
        if take is None or headers:
            subject = subject.decode(errors="replace").encode()
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        waiting = take(subject.decode(errors="replace"), reply.decode(errors="replace"), data)
        if waiting is not None:
            await waiting

    async def _process_err(self, err_msg: str) -> None:
        error = nats.errors.Error(f"nats: {err_msg.strip()}")
        if is_refusal(error) and self.is_connected:
            await self._process_op_err(error)
        else:
            await super()._process_err(err_msg)

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except BaseException:
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]  # the next attempt opens another one
            raise

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and "tls" in self.options and not info.get("tls_required"):
            raise NoTls
        await super()._process_info(info, initial_connection)


def login(url: str, credentials: Credentials | None) -> dict[str, Any]:
    """The options of nats-py that say who we are and whom we trust."""
    own_ca = credentials.tls_context() if credentials else None
    by_url = ssl.create_default_context() if urlsplit(url).scheme == "tls" else None
    return {
        "user": (credentials and credentials.user) or None,
        "password": (credentials and credentials.password) or None,
        "tls": own_ca or by_url,
    }


def is_refusal(error: object) -> bool:
    """Return whether trying again is in vain: the server refuses us, or we it."""
    distrust = isinstance(error, ssl.SSLCertVerificationError | NoTls)
    return distrust or any(words in str(error).lower() for words in REFUSALS)


def refusal(url: str, credentials: Credentials | None, why: object) -> str:
    """The sentence for such an error."""
    if isinstance(why, ssl.SSLCertVerificationError | NoTls):
        return (
            f"the NATS server at {url} cannot be trusted ({why}); check tls_ca in PENSTOCK_NATS_CREDENTIALS"
        )
    who = f"the user {credentials.user}" if credentials and credentials.user else "a client without a user"
    return f"the NATS server at {url} refuses {who} ({why}); check PENSTOCK_NATS_CREDENTIALS"
