"""Write what others have written, models, documents and gateways: on a terminal, nothing that it would obey.

There every control character but newline and tab is shown as its escape. A pipe or a file gets the text as it
is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol, TextIO

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""C0 but tab and newline, DEL and C1."""


class TextSink(Protocol):
    """The part of a stream that is needed to show text."""

    def write(self, text: str, /) -> int: ...
    def flush(self) -> None: ...


def escaped_controls(text: str) -> str:
    """Return the text with its control characters as a program would write them."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def escaped_in_json(text: str) -> str:
    """Return JSON that means the same, without any control character but those between its values."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class TerminalText:
    """A terminal that obeys nothing of what is written to it."""

    def __init__(self, stream: TextIO, escaped: Callable[[str], str]) -> None:
        self._stream = stream
        self._escaped = escaped

    def write(self, text: str, /) -> int:
        """Return the length of what was to be written, as a stream does."""
        self._stream.write(self._escaped(text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


def text_sink(stream: TextIO) -> TextSink:
    """Return where text goes that is to be shown on `stream`."""
    return TerminalText(stream, escaped_controls) if stream.isatty() else stream


def json_sink(stream: TextIO) -> TextSink:
    """Return where lines of JSON go."""
    return TerminalText(stream, escaped_in_json) if stream.isatty() else stream
