"""The stream that a process logs to, where a full disk or a reader that has gone ends nothing but the log."""

from __future__ import annotations

from typing import TextIO

from structlog.typing import EventDict, WrappedLogger


class LogStream:
    """A stream, and a processor of structlog: the first line that can be written again says how many could
    not."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._unwritten = 0

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        if self._unwritten:
            event["unwritten"] = self._unwritten
        return event

    def write(self, line: str) -> None:
        """Write a line as far as it can be written: whoever logs has something else to do than to fail."""
        try:
            self._stream.write(line)
            self._stream.flush()
        except OSError:
            self._unwritten += 1
        else:
            self._unwritten = 0

    def flush(self) -> None:
        """Do nothing: `write` has done it."""
