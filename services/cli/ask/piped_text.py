"""Text that is piped into `penstock ask`: all of the prompt, or what the question is about."""

from __future__ import annotations

import select
import sys
from typing import TextIO

from shared.errors import InvalidRequest, TooLarge

MAX_PIPED_BYTES = 16 << 20
"""A gateway takes less, by its `max_request_bytes`; this bounds what is read before it is asked."""
SILENT_S = 2.0
"""The time without a byte until a person is told that a pipe is read."""
NOTICE = "penstock ask: reading what is piped in; its end (Ctrl-D), or < /dev/null, sends the question alone"


def is_piped(stream: TextIO | None) -> bool:
    """Return whether a file or another program is behind `stream`, rather than a terminal or nothing."""
    return stream is not None and not stream.isatty()


def read_piped_text(stream: TextIO) -> str:
    """Read to the end, and tell a person on stderr where nothing comes.

    Raises InvalidRequest for what is no text, TooLarge over MAX_PIPED_BYTES.
    """
    if not select.select([stream], [], [], SILENT_S)[0]:
        print(NOTICE, file=sys.stderr, flush=True)
    data = stream.buffer.read(MAX_PIPED_BYTES + 1)
    if len(data) > MAX_PIPED_BYTES:
        raise TooLarge(f"more than {MAX_PIPED_BYTES} bytes are piped in: send a part of them")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"what is piped in is not UTF-8 text (byte {error.start}): a model reads text, so send its words"
        ) from error
    if "\0" in text:
        raise InvalidRequest("what is piped in is binary: a model reads text, so send its words")
    return text
