"""Many processes, one stream: whole lines, each with the name of who said it.

The children's output is read in chunks and cut at line ends; one thread writes the lines, so that a
terminal that stands still can never stop the launcher from supervising.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Callable, Container
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from shared.telemetry.log_text import LinePrefixes, log_as_text, log_object

MAX_LINE_BYTES = 64 * 1024
"""A longer line is cut into pieces of this size; each piece but the last ends with `CUT_MARK`."""

MAX_QUEUED_LINES = 10_000
"""Lines waiting for a slow terminal or disk; what comes on top is dropped, and the drop is told."""

CHUNK_BYTES = 64 * 1024
CLOSE_TIMEOUT_S = 1.0
CUT_MARK = b" \xe2\x80\xa6"


class LineSplitter:
    """Bytes in, whole lines out (without their line end)."""

    def __init__(self, limit_bytes: int = MAX_LINE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        pieces = [piece for line in lines for piece in self._cut(line.removesuffix(b"\r"))]
        *full, self._rest = self._cut(self._rest)
        return [*pieces, *full]

    def flush(self) -> list[bytes]:
        """Return what came after the last line end."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []

    def _cut(self, line: bytes) -> list[bytes]:
        pieces = []
        while len(line) > self._limit_bytes:
            pieces.append(line[: self._limit_bytes] + CUT_MARK)
            line = line[self._limit_bytes :]
        return [*pieces, line]


class ByteSink(Protocol):
    """The parts of a stream that are used."""

    def write(self, data: bytes, /) -> object: ...
    def flush(self) -> object: ...


class Said(NamedTuple):
    """A line, with who said it and when."""

    name: str
    line: bytes
    level: str
    at: datetime


class LineSink(Protocol):
    """Takes lines with the name of who said them."""

    def write(self, name: str, line: bytes, level: str = "info") -> None: ...


class LineWriter:
    """Writes whole lines to one stream from one thread; never blocks its caller.

    `close` gives the thread a bounded time to write what is queued.
    """

    def __init__(
        self,
        stream: ByteSink,
        *,
        colour: bool = False,
        as_json: bool = False,
        text_roles: Container[str] = (),
        limit: int = MAX_QUEUED_LINES,
        on_unwritten: Callable[[OSError], None] | None = None,
    ) -> None:
        """`as_json`: every line is a JSON object; one that a child wrote so is passed on as it is.
        `text_roles`: objects that these write are shown as text. `on_unwritten` is told once of a stream that
        takes no line, until it has taken one."""
        self._stream = stream
        self._prefixes = LinePrefixes(colour=colour)
        self._as_json = as_json
        self._text_roles = text_roles
        self._lines: queue.Queue[Said | None] = queue.Queue(limit)
        self._on_unwritten = on_unwritten
        self._dropped = 0
        self._unwritten = 0
        self._thread = threading.Thread(target=self._write_all, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, name: str, line: bytes, level: str = "info") -> None:
        """`level` is that of a line which is no object and does not say it."""
        if self._dropped and not self._lines.full():
            dropped, self._dropped = self._dropped, 0
            self._put(_ours(b"%d log lines dropped: they came faster than they are written" % dropped))
        self._put(Said(name, line, level, datetime.now(UTC)))

    def close(self) -> None:
        try:
            self._lines.put(None, timeout=CLOSE_TIMEOUT_S)
        except queue.Full:
            return
        self._thread.join(CLOSE_TIMEOUT_S)

    def _put(self, said: Said) -> None:
        try:
            self._lines.put_nowait(said)
        except queue.Full:
            self._dropped += 1

    def _formed(self, said: Said) -> bytes:
        """Return the line as it is to stand in the stream, with its line end."""
        if self._as_json:
            return (said.line if log_object(said.line) else _as_object(said)) + b"\n"
        event = log_object(said.line) if role_of(said.name) in self._text_roles else None
        text = said.line if event is None else log_as_text(event).encode(errors="backslashreplace")
        return b"".join(self._prefixes.prefixed(said.name, line) for line in text.split(b"\n"))

    def _told_of_unwritten(self) -> bytes:
        """Return the line about those before, "" where there are none."""
        lost = self._unwritten
        return self._formed(_ours(b"%d log lines could not be written" % lost)) if lost else b""

    def _write_all(self) -> None:
        read = True
        while (said := self._lines.get()) is not None:
            if not read:
                continue
            lines = self._told_of_unwritten() + self._formed(said)
            try:
                self._stream.write(lines)
                self._stream.flush()
                self._unwritten = 0
            except (BrokenPipeError, ValueError):
                read = False  # the stack goes on, and its services must not block
            except OSError as error:
                self._unwritten += 1  # a full disk, which may have room again
                if self._unwritten == 1 and self._on_unwritten is not None:
                    self._on_unwritten(error)


def role_of(name: str) -> str:
    """Return the role of an instance; of what is none, its name."""
    return name.rpartition("-")[0] or name


def _ours(sentence: bytes) -> Said:
    return Said("penstock", sentence, "warning", datetime.now(UTC))


def _as_object(said: Said) -> bytes:
    """Turn a line of another form into an object with the fields of `shared.telemetry.logging`."""
    event = {
        "ts": said.at.isoformat().replace("+00:00", "Z"),
        "level": said.level,
        "event": said.line.decode(errors="replace"),
        "role": role_of(said.name),
        "instance": said.name,
    }
    return json.dumps(event, ensure_ascii=False).encode()


async def pump(stream: asyncio.StreamReader, on_line: Callable[[bytes], None]) -> None:
    """Give every line of a child's output to `on_line` until the output ends."""
    splitter = LineSplitter()
    while chunk := await stream.read(CHUNK_BYTES):
        for line in splitter.feed(chunk):
            on_line(line)
    for line in splitter.flush():
        on_line(line)
