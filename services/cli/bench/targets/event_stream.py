"""Server-sent events, as bytes come: the data of each event."""

from __future__ import annotations

from collections.abc import Iterator

from services.cli.bench.targets.target import CallEnded, CallOutcome

MAX_EVENT_BYTES = 16 << 20
"""The longest event of a server's stream; with a longer one its call has failed."""
DONE = b"[DONE]"


class DataEvents:
    def __init__(self) -> None:
        self._unread = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the data of each event that is whole now. Raises CallEnded for one that is too long."""
        self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
        if len(self._unread) > MAX_EVENT_BYTES:
            raise CallEnded(CallOutcome.FAILED, "endless event", f"an event has over {MAX_EVENT_BYTES} bytes")
