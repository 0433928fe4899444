"""One client's connection: bytes of a transport to calls, and what calls write back in one piece a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import quote

import grpc

from shared.http2.codes import PLENTY, CodecEvent, Http2Error
from shared.http2.grpc_call import GrpcCall
from shared.http2.keepalive import Keepalive
from shared.http2.limits import (
    LAST_WORDS_S,
    MAX_HEADER_LIST_BYTES,
    MAX_IGNORED_BYTES,
    MAX_UNSENT_BYTES,
    ServerLimits,
)
from shared.http2.metadata import ANSWER, read_head, status_headers
from shared.http2.native_codec import new_connection

LEAVE_S = 1.0
"""The longest time for a client to hear that no call is taken any more, before that is so."""

Event = tuple[int, int, int, Any]


class Http2Connection(asyncio.Protocol):
    """`begin` runs a call, `gone` hears of the connection's end."""

    def __init__(
        self,
        limits: ServerLimits,
        begin: Callable[[GrpcCall, str], asyncio.Task[None]],
        gone: Callable[[Http2Connection], None],
    ) -> None:
        self.limits = limits
        self.codec = new_connection(limits.codec())
        self.peer = ""
        self._begin = begin
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, GrpcCall] = {}
        self._flushes = False
        self._full = False
        self._reads = True
        self._closes = False
        self._retired = False
        self._leaving: asyncio.TimerHandle | None = None
        self._last_words: asyncio.TimerHandle | None = None
        self._ignored_bytes = 0
        self._keepalive = Keepalive(self.codec, limits, self.leave, self.abort, self.flush_soon)

    @property
    def calls(self) -> list[GrpcCall]:
        """Return the open ones."""
        return [*self._calls.values()]

    # ---- told by the transport ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = made = cast("asyncio.Transport", transport)  # uvloop's is one by its methods alone
        self.peer = _peer(transport.get_extra_info("peername"))
        made.set_write_buffer_limits(MAX_UNSENT_BYTES)
        self.flush_soon()

    def data_received(self, data: bytes) -> None:
        if self._closes:
            self._ignore(len(data))
            return
        now_s = self._loop.time()
        self._keepalive.heard_s = now_s
        for event in self.codec.receive(data, int(now_s * 1000)):
            self._handle(event)
        self.flush_soon()
        if self._full and self._reads and self.codec.unsent_bytes > MAX_UNSENT_BYTES:
            self._reads = False
            if self._transport is not None:
                self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._full = True
        self._keepalive.full_since_s = self._loop.time()

    def resume_writing(self) -> None:
        self._full = False
        self._keepalive.full_since_s = None
        self._flush()
        if not self._reads and self._transport is not None:
            self._reads = True
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        self._closes = True
        self._keepalive.stop()
        for timer in (self._leaving, self._last_words):
            if timer is not None:
                timer.cancel()
        for call in self.calls:
            call.drop()
        self._gone(self)

    # ---- told by calls and the server ---------------------------------------------------------------

    def flush_soon(self) -> None:
        """Have what is written sent once in this turn of the loop."""
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self._flush)

    def forget(self, stream: int) -> None:
        """A call has ended."""
        if self._calls.pop(stream, None) is not None and not self._calls:
            self._keepalive.used_s = self._loop.time()

    def give_up(self, stream: int) -> None:
        """Let go of what a client has not taken of an answer."""
        if self.codec.reset(stream, int(Http2Error.CANCEL)):
            self.flush_soon()

    def leave(self) -> None:
        """Ask the client to go elsewhere from now on. Calls that are open, or on their way, go on."""
        if self._leaving is None and not self._closes:
            self.codec.go_away(False, int(Http2Error.NONE))
            self.codec.ping()  # its answer comes behind the calls that are on their way
            self._leaving = self._loop.call_later(LEAVE_S, self._retire)
            self.flush_soon()

    def close(self) -> None:
        """Close it behind what is written."""
        self._flush()
        self._closes = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._closes = True
        if self._transport is not None:
            self._transport.abort()

    # ---- its own ------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        kind, stream, code, what = event
        if kind == CodecEvent.CALL:
            self._take_call(stream, code, what)
        elif kind == CodecEvent.RESET:
            call = self._calls.get(stream)
            if call is not None:
                call.drop()
        elif kind == CodecEvent.FAILED:
            self._flush()
            self._end()
        elif kind == CodecEvent.RETIRE or (kind == CodecEvent.PONG and self._leaving is not None):
            self._retire()
        elif kind not in (CodecEvent.PONG, CodecEvent.LEAVING):
            call = self._calls.get(stream)
            if call is not None:
                call.take(event)

    def _take_call(self, stream: int, code: int, headers: list[tuple[str, str]]) -> None:
        if code == PLENTY:
            self._refuse(
                stream,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the headers are more than {MAX_HEADER_LIST_BYTES} bytes: send fewer",
            )
            return
        try:
            head = read_head(headers)
        except ValueError as error:
            self._refuse(stream, grpc.StatusCode.INTERNAL, str(error))
            return
        if head.refusal:
            self.codec.finish(stream, [(":status", str(head.refusal)), ("content-length", "0")])
            return
        call = GrpcCall(self, stream, head)
        self._calls[stream] = call
        call.begin(self._begin(call, head.encoding))

    def _refuse(self, stream: int, code: grpc.StatusCode, why: str) -> None:
        self.codec.finish(stream, [*ANSWER, *status_headers(code.value[0], why, ())])

    def _retire(self) -> None:
        """Take no more calls, and close when those that are open have ended."""
        if self._retired:
            return
        self._retired = True
        self.codec.go_away(True, int(Http2Error.NONE))
        self.flush_soon()

    def _end(self) -> None:
        """Close it once the client has heard why: a socket that is closed while something in it is unread
        takes back what it has not delivered."""
        if self._transport is None or self._closes:
            return
        self._closes = True
        if not self._transport.can_write_eof():  # TLS
            self._transport.close()
            return
        self._transport.write_eof()
        if not self._reads:
            self._reads = True
            self._transport.resume_reading()
        self._last_words = self._loop.call_later(LAST_WORDS_S, self._transport.close)

    def _ignore(self, count: int) -> None:
        self._ignored_bytes += count
        if self._ignored_bytes > MAX_IGNORED_BYTES and self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        self._flushes = False
        while self._transport is not None and not self._full and not self._closes:
            data = self.codec.take()
            if not data:
                break
            self._transport.write(data)
        for stream in self.codec.take_freed():
            call = self._calls.get(stream)
            if call is not None:
                call.free()
        if self._retired and not self._full and self.codec.stream_count == 0:
            self._end()


def _peer(name: Any) -> str:
    """Write an address as gRPC does."""
    if not isinstance(name, tuple):
        return "unknown"
    host, port = str(name[0]), name[1]
    return f"ipv6:{quote(f'[{host}]', safe=':')}:{port}" if ":" in host else f"ipv4:{host}:{port}"
