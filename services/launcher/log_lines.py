"""Many processes, one stderr: whole lines, each with the name of who said it.

The children's output is read in chunks and cut at line ends; one thread writes the lines, so that a
terminal that stands still can never stop the launcher from supervising.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import BinaryIO

MAX_LINE_BYTES = 64 * 1024
"""A longer line is cut into pieces of this size; each piece but the last ends with `CUT_MARK`."""

MAX_QUEUED_LINES = 10_000
"""Lines waiting for a slow terminal; what comes on top is dropped, and the drop is told."""

CHUNK_BYTES = 64 * 1024
CLOSE_TIMEOUT_S = 1.0
CUT_MARK = b" \xe2\x80\xa6"
COLOURS = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)


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


class LineWriter:
    """Writes whole lines to one stream from one thread; never blocks its caller.

    `close` gives the thread a bounded time to write what is queued.
    """

    def __init__(
        self,
        stream: BinaryIO,
        *,
        colour: bool = False,
        as_json: bool = False,
        limit: int = MAX_QUEUED_LINES,
    ) -> None:
        """`as_json`: every line is a JSON object; one that a child wrote so is passed on as it is."""
        self._stream = stream
        self._colour = colour
        self._as_json = as_json
        self._lines: queue.Queue[bytes | None] = queue.Queue(limit)
        self._dropped = 0
        self._unwritten = 0
        self._colour_of: dict[str, int] = {}
        self._thread = threading.Thread(target=self._write_all, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, name: str, line: bytes) -> None:
        if self._dropped and not self._lines.full():
            dropped, self._dropped = self._dropped, 0
            self._put(self._prefixed("penstock", b"%d log lines dropped: the terminal is slow" % dropped))
        self._put(self._prefixed(name, line))

    def close(self) -> None:
        try:
            self._lines.put(None, timeout=CLOSE_TIMEOUT_S)
        except queue.Full:
            return
        self._thread.join(CLOSE_TIMEOUT_S)

    def _put(self, line: bytes) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def _prefixed(self, name: str, line: bytes) -> bytes:
        if self._as_json:
            return (line if _is_object(line) else _as_object(name, line)) + b"\n"
        if not self._colour:
            return name.encode() + b" | " + line + b"\n"
        colour = self._colour_of.setdefault(name, COLOURS[len(self._colour_of) % len(COLOURS)])
        return b"\x1b[%dm%s |\x1b[0m %s\n" % (colour, name.encode(), line)

    def _told_of_unwritten(self) -> bytes:
        """Return the line about those before, "" where there are none."""
        lost = self._unwritten
        return self._prefixed("penstock", b"%d log lines could not be written" % lost) if lost else b""

    def _write_all(self) -> None:
        read = True
        while (line := self._lines.get()) is not None:
            try:
                if read:
                    self._stream.write(self._told_of_unwritten() + line)
                    self._stream.flush()
                    self._unwritten = 0
            except (BrokenPipeError, ValueError):
                read = False  # the stack goes on, and its services must not block
            except OSError:
                self._unwritten += 1  # a full disk, which may have room again


def _is_object(line: bytes) -> bool:
    if not line.startswith(b"{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _as_object(name: str, line: bytes) -> bytes:
    """Turn a line of another form into an object with the fields of `shared.telemetry.logging`."""
    role = name.rpartition("-")[0] or name
    said = {
        "ts": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        "level": "info",
        "event": line.decode(errors="replace"),
        "role": role,
        "instance": name,
    }
    return json.dumps(said, ensure_ascii=False).encode()


async def pump(stream: asyncio.StreamReader, on_line: Callable[[bytes], None]) -> None:
    """Give every line of a child's output to `on_line` until the output ends."""
    splitter = LineSplitter()
    while chunk := await stream.read(CHUNK_BYTES):
        for line in splitter.feed(chunk):
            on_line(line)
    for line in splitter.flush():
        on_line(line)
