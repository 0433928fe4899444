"""The receiving half of the bulk connection: NATS bytes in, chunk bodies straight into caller memory.

`BulkStream` is an asyncio BufferedProtocol, so the kernel copies received bytes into memory that we
choose. Control lines and ordinary messages collect in a small scratch buffer and are handed to
nats-py unchanged. The payload of a message on a bulk subject is never seen by nats-py: its first
`header_bytes` stay in the scratch buffer, the sink names the memory for the rest, and from then on
the kernel writes there. A body that the sink refuses goes to a discard buffer.

    MSG <subject> <sid> <size>\\r\\n <header> <body…> \\r\\n
    └──── scratch ───────────────────────┘ └ sink's memory or discard
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol, cast

SCRATCH_BYTES = 16 << 10
"""One read of anything but a body. Small, because what it holds of a body must be copied out."""

DISCARD_BYTES = 256 << 10

MAX_CONTROL_LINE_BYTES = 1 << 20
"""A longer line is not NATS; a cluster's INFO may be tens of KB."""

MAX_UNREAD_BYTES = 4 << 20
"""The most that waits for nats-py before reading from the socket pauses."""

_CRLF = b"\r\n"


class BulkSink(Protocol):
    """Decides where the bodies of one subject land. Called from the event loop, must not block."""

    header_bytes: int

    def open(self, header: bytes, body_bytes: int) -> Sequence[memoryview] | None:
        """Memory for `body_bytes` bytes, in order; None sends the body to the discard buffer.

        `header` is shorter than `header_bytes` exactly when the whole payload is.
        """

    def done(self) -> None:
        """The body that `open` made room for is there."""

    def lost(self) -> None:
        """The connection went away inside that body: some of the memory may have been written."""


class BulkStream(asyncio.BufferedProtocol):
    """One TCP connection's parser; a reconnect makes a new one. Knows nothing of who listens."""

    def __init__(self, sinks: dict[bytes, BulkSink]) -> None:
        self._sinks = sinks
        self._scratch = bytearray(SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._end = 0  # scratch[:_end] is received and not yet consumed
        self._discard = memoryview(bytearray(DISCARD_BYTES))
        self._skip = 0  # payload bytes nobody wants, then
        self._passing = 0  # payload bytes for nats-py
        self._sink: BulkSink | None = None  # whose message is being received
        self._size = 0  # of its payload
        self._segments: deque[memoryview] = deque()  # where its body still goes
        self._filled = 0  # bytes of _segments[0] that are there

        self.unread = bytearray()
        self.eof = False
        self.transport: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._reader: asyncio.Future[None] | None = None
        self._writers: deque[asyncio.Future[None]] = deque()
        self._write_paused = False
        self._read_paused = False

    # ---- asyncio's side ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not instances of asyncio's, only shaped like them.
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        if self._segments:
            return self._segments[0][self._filled :]
        if self._discards_directly():
            return self._discard[: self._skip]
        if self._end == len(self._scratch):
            self._grow()
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._segments:
            self._filled += nbytes
            self._advance()
        elif self._discards_directly():
            self._skip -= nbytes
        else:
            self._end += nbytes
            self._scan()

    def eof_received(self) -> bool:
        self.eof = True
        self._wake_reader()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.eof = True
        if self._sink is not None:
            sink, self._sink = self._sink, None
            if self._segments:
                self._segments.clear()
                sink.lost()
        while self._writers:
            writer = self._writers.popleft()
            if not writer.done():
                writer.set_exception(error or ConnectionResetError("the bulk connection was lost"))
        if not self.closed.done():
            self.closed.set_result(None)
        self._wake_reader()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        while self._writers:
            writer = self._writers.popleft()
            if not writer.done():
                writer.set_result(None)

    # ---- the transport's side ---------------------------------------------------------------

    async def drain(self) -> None:
        """Wait until the socket takes more. ConnectionResetError when it never will."""
        if self.closed.done():
            raise ConnectionResetError("the bulk connection was lost")
        if self._write_paused:
            writer = asyncio.get_running_loop().create_future()
            self._writers.append(writer)
            await writer

    async def readable(self) -> None:
        """Return when something new is in `unread`, or at the end of the stream."""
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def take(self, nbytes: int | None = None) -> bytes:
        taken = bytes(self.unread[:nbytes])
        del self.unread[: len(taken)]
        if self._read_paused and len(self.unread) <= MAX_UNREAD_BYTES and self.transport is not None:
            self._read_paused = False
            self.transport.resume_reading()
        return taken

    def discard_body(self, sink: BulkSink) -> None:
        """Send the rest of the body that is landing for `sink`, if any, to the discard buffer."""
        if self._sink is sink and self._segments:
            left = sum(segment.nbytes for segment in self._segments) - self._filled
            self._segments.clear()
            self._sink = None
            self._skip = left + len(_CRLF)

    # ---- parsing ----------------------------------------------------------------------------

    def _discards_directly(self) -> bool:
        return self._end == 0 and self._skip > len(_CRLF)

    def _grow(self) -> None:
        if len(self._scratch) >= MAX_CONTROL_LINE_BYTES:
            raise ConnectionAbortedError("the server sent a control line without an end")
        grown = bytearray(2 * len(self._scratch))
        grown[: self._end] = self._view[: self._end]
        self._scratch, self._view = grown, memoryview(grown)

    def _scan(self) -> None:
        """Consume as much of the scratch buffer as can be understood now."""
        at = 0
        while at < self._end:
            used = self._step(at)
            if used == 0:
                break
            at += used
        rest = self._end - at
        if at and rest:
            self._scratch[:rest] = self._scratch[at : self._end]
        self._end = rest

    def _step(self, at: int) -> int:
        """Bytes consumed from `at` on; 0 = more must arrive first."""
        there = self._end - at
        if self._skip:
            used = min(self._skip, there)
            self._skip -= used
            return used
        if self._passing:
            used = min(self._passing, there)
            self._passing -= used
            self._emit(at, at + used)
            return used
        if self._segments:
            return self._land(at)
        if self._sink is not None:
            return self._open_body(self._sink, at)
        stop = self._scratch.find(_CRLF, at, self._end)
        if stop < 0:
            return 0
        self._control_line(at, stop)
        return stop + len(_CRLF) - at

    def _control_line(self, start: int, stop: int) -> None:
        if self._scratch[start] in b"MHmh":
            parts = bytes(self._view[start:stop]).split()
            operation = parts[0].upper()
            sized = operation in (b"MSG", b"HMSG") and len(parts) >= 4 and _is_size(parts[-1])
            if sized and operation == b"MSG" and (sink := self._sinks.get(parts[1])) is not None:
                self._sink, self._size = sink, int(parts[-1])
                if self._size == 0:
                    self._refuse_empty(sink)
                return
            if sized:
                self._passing = int(parts[-1]) + len(_CRLF)
        self._emit(start, stop + len(_CRLF))

    def _refuse_empty(self, sink: BulkSink) -> None:
        self._sink = None
        self._skip = len(_CRLF)
        sink.open(b"", 0)

    def _open_body(self, sink: BulkSink, at: int) -> int:
        header_bytes = min(sink.header_bytes, self._size)
        if self._end - at < header_bytes:
            return 0
        body_bytes = self._size - header_bytes
        segments = sink.open(bytes(self._view[at : at + header_bytes]), body_bytes)
        if segments is None:
            self._sink = None
            self._skip = body_bytes + len(_CRLF)
            return header_bytes
        if sum(segment.nbytes for segment in segments) != body_bytes:
            raise ValueError(f"the sink made room for something else than {body_bytes} bytes")
        self._segments.extend(segment for segment in segments if segment.nbytes)
        self._filled = 0
        if not self._segments:
            self._finish()
        return header_bytes

    def _land(self, at: int) -> int:
        """Copy out what the scratch buffer already holds of a body."""
        segment = self._segments[0]
        used = min(segment.nbytes - self._filled, self._end - at)
        segment[self._filled : self._filled + used] = self._view[at : at + used]
        self._filled += used
        self._advance()
        return used

    def _advance(self) -> None:
        if self._filled == self._segments[0].nbytes:
            self._segments.popleft()
            self._filled = 0
            if not self._segments:
                self._finish()

    def _finish(self) -> None:
        sink, self._sink = self._sink, None
        self._skip = len(_CRLF)
        assert sink is not None
        sink.done()

    def _emit(self, start: int, stop: int) -> None:
        self.unread += self._view[start:stop]
        if len(self.unread) > MAX_UNREAD_BYTES and not self._read_paused and self.transport is not None:
            self._read_paused = True
            self.transport.pause_reading()
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _is_size(word: bytes) -> bool:
    return word.isdigit() and len(word) <= 10
