"""The server's side of one client: what it has said, what it wants, what waits for it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

from tests.simulation.bus.commands import (
    Command,
    CommandReader,
    LineTooLong,
    Malformed,
    PayloadTooLong,
    UnknownOperation,
)
from tests.simulation.bus.interest import ServerSubscription, can_be_subscribed
from tests.simulation.bus.permitted import Permitted, quoted

if TYPE_CHECKING:
    from tests.simulation.bus.memory_server import MemoryServer
    from tests.simulation.bus.transport import MemoryTransport

FIRST_PING_S = 2.0
"""The server's first ping comes so soon, and up to a fifth later, whatever its interval."""
CLIENT_KNOWS_INFO = 1
"""The protocol number of clients that take an INFO at any time."""


class ServerConnection(asyncio.Protocol):
    """A client may do nothing but CONNECT before it is let in."""

    def __init__(self, server: MemoryServer, number: int) -> None:
        self.server = server
        self.number = number
        self.name = ""
        self.user = ""
        self.password = ""
        self.echo = True
        self.headers = False
        self.no_responders = False
        self.verbose = False
        self.closed = False
        self.let_in = not server.settings.users
        self.permitted = Permitted(None)
        self.subscriptions: dict[bytes, ServerSubscription] = {}
        self.transport: MemoryTransport
        self._knows_info = False
        self._reader = CommandReader(
            server.settings.max_control_line_bytes, server.settings.max_payload_bytes
        )
        self._ponged = False
        self._pings_out = 0
        self._pinged = False
        self._heard_s = 0.0
        self._auth_timer: asyncio.TimerHandle | None = None
        self._ping_timer: asyncio.TimerHandle
        self._write_deadline: asyncio.TimerHandle | None = None

    # ---- asyncio's side -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("MemoryTransport", transport)
        self.transport.set_write_buffer_limits(high=0)
        self.send_info()
        settings = self.server.settings
        loop, first_s = asyncio.get_running_loop(), min(settings.ping_interval_s, FIRST_PING_S)
        if not self.let_in:
            self._auth_timer = loop.call_later(settings.auth_timeout_s, self._not_let_in)
        self._ping_timer = loop.call_later(first_s * (1 + self.server.random.random() / 5), self._ping)

    def data_received(self, data: bytes) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        self._reader.feed(data)
        try:
            while not self.closed and (command := self._reader.next()) is not None:
                self._take(command)
        except UnknownOperation:
            self.refuse("Unknown Protocol Operation" if self.let_in else "Authorization Violation")
        except LineTooLong:
            self.refuse("maximum control line exceeded")
        except PayloadTooLong:
            self.refuse("Maximum Payload Violation")
        except Malformed:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._forget()

    def pause_writing(self) -> None:
        """Something waits for a client that does not read: it has its time for that."""
        self._start_write_deadline()

    def resume_writing(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    # ---- what the client says -------------------------------------------------------------------

    def _take(self, command: Command) -> None:
        if not self.let_in and command.operation != b"CONNECT":
            self.refuse("Authorization Violation")
            return
        match command.operation:
            case b"PUB" | b"HPUB":
                self._publish(command)
            case b"PING":
                self._answer_ping()
            case b"PONG":
                self._pings_out = 0
            case b"SUB":
                self._subscribe(command.words)
            case b"UNSUB":
                self._unsubscribe(command.words)
            case b"CONNECT":
                self._connect(command.words[0])

    def _connect(self, argument: bytes) -> None:
        try:
            options: dict[str, Any] = json.loads(argument)
        except ValueError:
            self.close()
            return
        self.name = str(options.get("name", ""))
        self.user, self.password = str(options.get("user", "")), str(options.get("pass", ""))
        self.echo = bool(options.get("echo", True))
        self.headers = bool(options.get("headers", False))
        self.no_responders = bool(options.get("no_responders", False))
        self.verbose = bool(options.get("verbose", True))
        self._knows_info = int(options.get("protocol", 0)) >= CLIENT_KNOWS_INFO
        if not self.server.lets_in(self):
            self.refuse("Authorization Violation")
            return
        self.let_in = True
        self._ok()

    def _publish(self, command: Command) -> None:
        subject, reply = command.words[0], command.words[1] if len(command.words) > 1 else b""
        if command.operation == b"HPUB" and not self.headers:
            self.close()
        elif not self.permitted.may_publish(subject):
            self.say_error(f"Permissions Violation for Publish to {quoted(subject)}")
        else:
            self._ok()
            self.server.route(self, subject, reply, command.payload, command.header_bytes)

    def _subscribe(self, words: tuple[bytes, ...]) -> None:
        if len(words) not in (2, 3):
            self.close()
            return
        pattern, queue, sid = words[0], words[1] if len(words) == 3 else b"", words[-1]
        if not self.permitted.may_subscribe(pattern):
            using = f" using queue {quoted(queue)}" if queue else ""
            self.say_error(f"Permissions Violation for Subscription to {quoted(pattern)}{using}")
            return
        if sid not in self.subscriptions:
            subscription = ServerSubscription(self, sid, pattern, queue)
            if not can_be_subscribed(subscription.tokens):
                self.say_error("Invalid Subject")
                return
            self.subscriptions[sid] = subscription
            self.server.interest.add(subscription)
        self._ok()

    def _unsubscribe(self, words: tuple[bytes, ...]) -> None:
        if len(words) not in (1, 2):
            self.close()
            return
        subscription = self.subscriptions.get(words[0])
        limit = int(words[1]) if len(words) == 2 and words[1].isdigit() else 0
        if subscription is not None:
            if limit > subscription.delivered:
                subscription.limit = limit
            else:
                self.end_subscription(subscription)
        self._ok()

    def end_subscription(self, subscription: ServerSubscription) -> None:
        self.subscriptions.pop(subscription.sid, None)
        self.server.interest.remove(subscription)

    def _answer_ping(self) -> None:
        self._write(b"PONG\r\n")
        if not self._ponged:
            self._ponged = True
            if self._knows_info:
                self.send_info()

    # ---- what the client is told ----------------------------------------------------------------

    def deliver(
        self,
        subscription: ServerSubscription,
        subject: bytes,
        reply: bytes,
        payload: bytes,
        header_bytes: int,
    ) -> None:
        if header_bytes and not self.headers:
            payload, header_bytes = payload[header_bytes:], 0
        words = [subject, subscription.sid, *([reply] if reply else [])]
        if header_bytes:
            words += [b"%d" % header_bytes]
        line = b" ".join([b"HMSG" if header_bytes else b"MSG", *words, b"%d" % len(payload)])
        self._write(b"%b\r\n%b\r\n" % (line, payload))
        if reply:
            self.permitted.delivered(reply)

    def send_info(self) -> None:
        info = json.dumps(self.server.info(self), separators=(",", ":"))
        self._write(f"INFO {info} \r\n".encode())

    def say_error(self, sentence: str) -> None:
        self._write(f"-ERR '{sentence}'\r\n".encode())

    def refuse(self, sentence: str) -> None:
        """Say what is wrong, and close."""
        self.say_error(sentence)
        self.close()

    def _ok(self) -> None:
        if self.verbose and not self.closed:
            self._write(b"+OK\r\n")

    def _write(self, data: bytes) -> None:
        if self.closed:
            return
        self.transport.write(data)
        if self.transport.get_write_buffer_size() > self.server.settings.max_pending_bytes:
            self.drop("pending bytes")

    # ---- end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close behind what has been written."""
        self._forget()
        self.transport.close()

    def drop(self, why: str) -> None:
        """Close, as of a slow consumer, without what waits for it."""
        if not self.closed:
            self.server.trace.note("slow consumer", self.name, why)
            self._forget()
            self.transport.abort()

    def lose(self) -> None:
        """End with the server's process: what is on its way to or from it is lost."""
        self._forget()
        self.transport.incoming.drop()
        self.transport.outgoing.drop()
        self.transport.abort()

    def _forget(self) -> None:
        """Let go of everything the client had here."""
        if self.closed:
            return
        self.closed = True
        if self._auth_timer is not None:
            self._auth_timer.cancel()
        self._ping_timer.cancel()
        self.resume_writing()
        for subscription in self.subscriptions.values():
            self.server.interest.remove(subscription)
        self.subscriptions.clear()
        self.server.gone(self)

    # ---- time -----------------------------------------------------------------------------------

    def _not_let_in(self) -> None:
        if not self.let_in and not self.closed:
            self.refuse("Authentication Timeout")

    def _ping(self) -> None:
        """Ping who has said nothing lately, and close over who does not answer."""
        if self.closed:
            return
        interval_s = self.server.settings.ping_interval_s
        silent_s = asyncio.get_running_loop().time() - self._heard_s
        if not self._pinged or silent_s >= interval_s:
            if self._pings_out + 1 > self.server.settings.ping_max:
                self.refuse("Stale Connection")
                return
            self._pinged = True
            self._pings_out += 1
            self._write(b"PING\r\n")
        self._ping_timer = asyncio.get_running_loop().call_later(interval_s, self._ping)

    def _start_write_deadline(self) -> None:
        until = self.transport.written + self.transport.get_write_buffer_size()
        self._write_deadline = asyncio.get_running_loop().call_later(
            self.server.settings.write_deadline_s, self._write_due, until
        )

    def _write_due(self, until: int) -> None:
        """What waited when the deadline began must have gone out; what has come since has a deadline anew."""
        if self.transport.written < until:
            self.drop("write deadline")
        else:
            self._start_write_deadline()
