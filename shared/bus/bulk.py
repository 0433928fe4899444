"""The second NATS connection, for KV bytes alone: no copy of a body on either side.

A 1 MB chunk in front of a token on the same connection costs the token 13 ms, and stock nats-py
copies a payload seven times on receive and twice on send. Here chunk bodies land where the sink
says (`bulk_stream`), and leave as the memory views they are.

A chunk on the wire is one ordinary message: a fixed binary header, then the body. The header is part
of the payload, not of the reply subject or NATS headers, because servers may rewrite the former
(account imports, gateways) and the latter must be parsed as text; it costs no copy in this place.

uvloop writes the views with writev; the stdlib loop joins them first (one copy).
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Sequence
from urllib.parse import ParseResult

import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.aio.transport import Transport

from shared.bus.addresses import server_urls, without_password
from shared.bus.bulk_stream import BulkSink, BulkStream
from shared.bus.client import (
    MAX_OUTSTANDING_PINGS,
    PING_INTERVAL_S,
    BusClient,
    is_refusal,
    login,
    refusal,
)
from shared.bus.connection import bounded
from shared.bus.credentials import Credentials
from shared.bus.denials import Denials
from shared.bus.refusals import Refusals
from shared.errors import InvalidRequest, TooLarge, Unavailable

FIRST_CONNECT_S = 15.0
DEFAULT_PORT = 4222
RECONNECT_WAIT_S = 0.05
SEND_TIMEOUT_S = 5.0
"""A send that the socket does not take for so long fails: the server is stuck or gone."""
CLOSE_TIMEOUT_S = 2.0
WRITE_HIGH_WATER_BYTES = 512 << 10
"""Two chunks: the next one is ready when the kernel asks for it."""

_SUBJECT = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")

log = structlog.get_logger()


class _BulkTransport(Transport):
    """nats-py's view of a `BulkStream`; one object over all reconnects."""

    def __init__(self) -> None:
        self.sinks: dict[bytes, BulkSink] = {}
        self.stream: BulkStream | None = None

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:  # noqa: ARG002 - nats-py's signature
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(connect_timeout):
            transport, stream = await loop.create_connection(
                lambda: BulkStream(self.sinks), uri.hostname or "127.0.0.1", uri.port or DEFAULT_PORT
            )
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self.stream = stream

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,  # noqa: ARG002 - nats-py's signature
        connect_timeout: int,
    ) -> None:
        plain, stream = self._stream().transport, BulkStream(self.sinks)
        assert plain is not None
        hostname = uri if isinstance(uri, str) else uri.hostname
        async with asyncio.timeout(connect_timeout):
            transport = await asyncio.get_running_loop().start_tls(
                plain, stream, ssl_context, server_hostname=hostname
            )
        assert transport is not None
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        stream.transport = transport
        self.stream = stream

    def _stream(self) -> BulkStream:
        if self.stream is None:
            raise ConnectionResetError("the bulk connection is not open")
        return self.stream

    def _open_transport(self) -> asyncio.Transport:
        transport = self._stream().transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the bulk connection is closing")
        return transport

    def write(self, payload: bytes) -> None:
        self._open_transport().write(payload)

    def writelines(self, payload: Sequence[bytes | memoryview]) -> None:
        self._open_transport().writelines(payload)

    async def read(self, buffer_size: int) -> bytes:  # noqa: ARG002 - whole reads, as for a websocket
        stream = self._stream()
        while not stream.unread and not stream.eof:
            await stream.readable()
        return stream.take()

    async def readline(self) -> bytes:
        stream = self._stream()
        while (end := stream.unread.find(b"\n")) < 0:
            if stream.eof:
                return stream.take()
            await stream.readable()
        return stream.take(end + 1)

    async def drain(self) -> None:
        await self._stream().drain()

    async def wait_closed(self) -> None:
        if self.stream is not None:
            # Shielded: `closed` belongs to the stream, a cancelled waiter must not cancel it.
            await asyncio.shield(self.stream.closed)

    def close(self) -> None:
        if self.stream is not None and self.stream.transport is not None:
            self.stream.transport.close()

    def abort(self) -> None:
        if self.stream is not None and self.stream.transport is not None:
            self.stream.transport.abort()

    def at_eof(self) -> bool:
        return self.stream is None or (self.stream.eof and not self.stream.unread)

    def __bool__(self) -> bool:
        return True


class _BulkClient(BusClient):
    """nats-py with our transport in place before it would make its own."""

    def __init__(self) -> None:
        super().__init__()
        self.bulk = _BulkTransport()
        self._transport = self.bulk

    def _abort(self) -> None:
        self.bulk.abort()


class BulkConnection:
    """Send and receive KV chunks. One per process, beside the control connection (`Bus`)."""

    def __init__(self, client: _BulkClient, name: str) -> None:
        self._client = client
        self._denials = Denials(name)
        self._refusals: Refusals
        self._opened = False
        self._reconnected: list[Callable[[], None]] = []
        self._last_error: Exception | None = None
        self.strays = 0
        """Messages on our subjects that carry NATS headers, so that they cannot be chunks."""

    @classmethod
    async def connect(cls, url: str, *, name: str, credentials: Credentials | None = None) -> BulkConnection:
        """Raises Unavailable after FIRST_CONNECT_S, at once when the server refuses us; later it reconnects
        for ever."""
        client = _BulkClient()
        connection = cls(client, name)
        shown_url = without_password(url)
        connection._refusals = Refusals(client, name, shown_url, credentials, RECONNECT_WAIT_S)
        try:
            call = client.connect(
                server_urls(url),
                name=name,
                **login(url, credentials),
                error_cb=connection._on_error,
                reconnected_cb=connection._on_reconnected,
                reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]  # annotated int, slept as given
                max_reconnect_attempts=-1,
                ping_interval=PING_INTERVAL_S,
                max_outstanding_pings=MAX_OUTSTANDING_PINGS,
            )
            await bounded(call, FIRST_CONNECT_S)
        except (TimeoutError, OSError, nats.errors.Error) as error:
            await connection.close()
            why = connection._last_error or error
            if is_refusal(why):
                raise Unavailable(refusal(shown_url, credentials, why)) from error
            raise Unavailable(
                f"cannot reach NATS at {shown_url} ({type(why).__name__}: {why}); "
                "is nats-server running there?"
            ) from error
        connection._opened = True
        connection._refusals.ended()
        return connection

    @property
    def connected(self) -> bool:
        return self._client.is_connected

    @property
    def max_payload(self) -> int:
        """The server's limit for header + body, in bytes."""
        return int(self._client.max_payload)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """`callback` runs after every reconnect: what was in flight before it may be lost."""
        self._reconnected.append(callback)

    async def serve(self, subject: str, sink: BulkSink) -> None:
        """Land the chunks of `subject` (exact, no wildcards) through `sink`; active on return."""
        _check_subject(subject)
        self._client.bulk.sinks[subject.encode()] = sink
        await self._client.subscribe(subject, cb=self._on_stray)
        # nats-py's flush() writes its PING in front of pending SUBs, so one is not enough.
        await self._client.flush()
        await self._client.flush()
        self._denials.check_subscribed(subject)

    def discard_body(self, sink: BulkSink) -> None:
        """Discard what is landing for `sink` at this moment; `done` and `lost` are not called for it."""
        stream = self._client.bulk.stream
        if stream is not None:
            stream.discard_body(sink)

    async def send(self, subject: str, header: bytes, body: Sequence[memoryview]) -> None:
        """One chunk; returns when the socket takes more.

        The views may still be read after the return: leave their memory alone until the receiver
        has answered. Raises TooLarge over the server's max_payload, Unavailable when disconnected.
        """
        _check_subject(subject)
        size = len(header) + sum(view.nbytes for view in body)
        if size > self.max_payload:
            raise TooLarge(
                f"a chunk of {size} bytes is over the server's max_payload of {self.max_payload}; "
                "raise max_payload in nats.conf"
            )
        if not self.connected:
            raise Unavailable("the bulk connection is down; it reconnects by itself")
        try:
            self._client.bulk.writelines((f"PUB {subject} {size}\r\n".encode(), header, *body, b"\r\n"))
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._client.bulk.drain()
        except (OSError, TimeoutError) as error:
            raise Unavailable(f"a chunk could not be sent ({type(error).__name__})") from error

    async def close(self) -> None:
        """Bounded; what the socket has not taken yet is lost, and the receiver asks for it again."""
        if self._client.is_closed:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._client.close()
        except (TimeoutError, OSError, nats.errors.Error) as error:
            log.warning("the bulk connection did not close cleanly", error=type(error).__name__)

    async def _on_stray(self, _message: Msg) -> None:
        self.strays += 1

    async def _on_reconnected(self) -> None:
        self._refusals.ended()
        log.info("the bulk connection is back")
        for callback in self._reconnected:
            callback()

    async def _on_error(self, error: Exception) -> None:
        # Nothing may be raised from here once it is open: it would end nats-py's read loop.
        self._last_error = error
        if is_refusal(error) and not self._opened and self._client.is_refused_everywhere():
            raise error  # the only way out of a first connect that goes on for ever
        if self._refusals.take(error) or self._denials.take(error):
            return  # a refusal that stays ends the process by its control connection
        if self._client.is_connected:
            log.warning("bulk connection", error=type(error).__name__, detail=str(error))
        else:
            # One line per failed attempt, twenty a second: only for those who look for it.
            log.debug("bulk_connect_failed", error=type(error).__name__, detail=str(error))


def _check_subject(subject: str) -> None:
    """A subject goes into a control line: a space or line break in it would be an injection."""
    if not _SUBJECT.fullmatch(subject):
        raise InvalidRequest(f"{subject[:80]!r} is not an exact NATS subject")
