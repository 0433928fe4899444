"""nats-py's client, except for some things.

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

Of several servers it goes to another one when it loses one: nats-py draws one, and may draw the one that
hangs. But one that takes back its login is asked first: it knows the new password. It waits for no byte that
the lost one does not take any more, and asks more often whether its server lives: there is another one to go
to. It leaves a server that has lost the rest of its cluster (`shared.bus.cluster_watch`).

It sends without a task in between: nats-py has one that writes what waits for the socket. Where the socket
has taken all that was written before, what is sent in a turn of the loop is written in the next one.

It asks at ticks, when an idle process wakes up anyway (`shared.ticks`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import ParseResult

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from shared.bus.addresses import wants_tls
from shared.bus.cluster_watch import ClusterWatch
from shared.bus.credentials import Credentials
from shared.deadline import SYSTEM_CLOCK
from shared.ticks import until_tick

PING_INTERVAL_S = 2
MAX_OUTSTANDING_PINGS = 2
"""A server that leaves so many unanswered counts as gone when the next one is due."""
CLUSTER_PING_INTERVAL_S = 0.5
"""The time between pings where there are several servers: one that hangs is left after 1.5 s."""
LATELY_S = 5.0
"""A server that was lost or tried within this time comes after the others."""
PING = b"PING\r\n"
MAX_KNOWN_SERVERS = 64
"""The most servers that are kept as places to go to: an upgrade of a cluster may give them new addresses."""


class NoTls(nats.errors.Error):
    def __str__(self) -> str:
        return "it offers no TLS"


REFUSALS = ("authorization violation", "user authentication revoked", "user authentication expired")
"""The words of a server that does not let in, or no longer."""

Take = Callable[[str, str, bytes], Coroutine[Any, Any, None] | None]
"""Takes subject, reply subject and data of a message; what it returns is waited for before the next one."""


class BusClient(Client):
    """Given a TLS context, it talks TLS or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self._takers: dict[int, Take] = {}
        self._cluster = ClusterWatch(self._move_to)
        self._advertised: frozenset[str] = frozenset()
        """The servers of which ours has said last that it reaches them, as HOST:PORT."""
        self._wanted = ""
        self._refusing: set[str] = set()
        self._writes_soon = False

    def send_now(self, subject: str, data: bytes, reply: str = "") -> bool:
        """Queue a message for the socket; False, and nothing happens, where that has to wait or is an error:
        then `publish` knows more."""
        if (
            self._status != Client.CONNECTED
            or len(data) > self._max_payload
            or self._pending_data_size + len(data) >= self._max_pending_size
            or not (_is_word(subject) and (not reply or _is_word(reply)))
        ):
            return False
        command = b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(data), data)
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += len(data)
        self._pending.append(command)
        self._pending_data_size += len(command)
        if not self._writes_soon:
            self._writes_soon = True
            asyncio.get_running_loop().call_soon(self._write_pending)
        return True

    def _write_pending(self) -> None:
        """Write what waits, where the socket has room for it; else nats-py's task does once there is some."""
        self._writes_soon = False
        writer = getattr(self._transport, "_io_writer", None)
        if self._status != Client.CONNECTED or not self._pending:
            return
        if writer is not None and not writer.transport.get_write_buffer_size():
            waiting, self._pending, self._pending_data_size = self._pending, [], 0
            writer.writelines(waiting)
        elif self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    def hand_over(self, subscription: Subscription, take: Take) -> None:
        """Hand its messages to `take` from now on, all but those with headers, which no message of ours
        has."""
        self._takers[subscription._id] = take  # noqa: SLF001 - what messages name it by

    def is_refused_everywhere(self) -> bool:
        """The server that we came to refuses us: return whether all that were named have."""
        if self._current_server is not None:
            self._refusing.add(self._current_server.uri.netloc)
        return self._refusing >= {each.uri.netloc for each in self._server_pool if not each.discovered}

    async def _move_to(self, address: str) -> bool:
        if not self.is_connected:
            return False
        self._wanted = address
        self._abort()
        await self.force_reconnect()
        return True

    def _abort(self) -> None:
        """Close the socket, and do not wait until the server has taken what was sent."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def _process_op_err(self, e: Exception) -> None:
        if not (self.is_closed or self.is_reconnecting):
            self._abort()
            if self._current_server is not None and not self._wanted and len(self._server_pool) > 1:
                self._current_server.last_attempt = SYSTEM_CLOCK.monotonic_s()
        await super()._process_op_err(e)

    async def _ping_interval(self) -> None:
        while True:
            await until_tick(self.options["ping_interval"])
            if not self.is_connected or self._transport is None:
                continue
            self._pings_outstanding += 1
            if self._pings_outstanding > self.options["max_outstanding_pings"]:
                await self._process_op_err(nats.errors.StaleConnectionError())
                return
            try:
                self._pongs.append(asyncio.get_running_loop().create_future())
                self._transport.write(PING)
            except (RuntimeError, OSError):  # it is being closed
                return

    async def _attempt_reconnect(self) -> None:
        self._cluster.stop()
        await super()._attempt_reconnect()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        self._cluster.stop()
        await super()._close(status, do_cbs)

    async def _select_next_server(self) -> None:
        lately_s = SYSTEM_CLOCK.monotonic_s() - LATELY_S
        self._server_pool.sort(  # what is alike stays in the order that nats-py has drawn
            key=lambda each: (
                _place(each.uri) != self._wanted,
                each.discovered and each.uri.netloc not in self._advertised,
                max(lately_s, each.last_attempt or 0.0),
            )
        )
        self._wanted = ""
        await super()._select_next_server()

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
        if is_refusal(error) and self.is_connected and self._current_server is not None:
            await self._error_cb(error)  # which reads the password anew: this server is the first to know it
            self._wanted = _place(self._current_server.uri)
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
        if urls := info.get("connect_urls"):
            self._note_cluster(frozenset(map(str, urls)))
        several = len(self._server_pool) > 1
        self.options["ping_interval"] = CLUSTER_PING_INTERVAL_S if several else PING_INTERVAL_S

    def _note_cluster(self, advertised: frozenset[str]) -> None:
        self._advertised = advertised
        pool = self._server_pool
        gone = [each for each in pool if each.discovered and each.uri.netloc not in advertised]
        for each in gone[: max(0, len(pool) - MAX_KNOWN_SERVERS)]:
            pool.remove(each)
        known = [_place(each.uri) for each in pool]
        named = sum(not each.discovered for each in pool)
        self._cluster.heard(advertised, known, named)


def _is_word(subject: str) -> bool:
    """Return whether nothing in a subject could be taken for the end of it."""
    return subject.isprintable() and bool(subject) and " " not in subject


def _place(uri: ParseResult) -> str:
    """Return HOST:PORT, as servers tell it of each other."""
    return uri.netloc.rpartition("@")[2]


def login(url: str, credentials: Credentials | None) -> dict[str, Any]:
    """The options of nats-py that say who we are and whom we trust."""
    own_ca = credentials.tls_context() if credentials else None
    by_url = ssl.create_default_context() if wants_tls(url) else None
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
