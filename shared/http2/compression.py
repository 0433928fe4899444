"""Open messages that clients have compressed, as far as they may get."""

from __future__ import annotations

import zlib

IDENTITY = "identity"
WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""The compressions of gRPC, as zlib is told of each."""


class TooLargeOpened(Exception):
    """More comes out than may."""


def is_known(encoding: str) -> bool:
    return encoding == IDENTITY or encoding in WINDOW_BITS


def decompressed(data: bytes, encoding: str, most_bytes: int) -> bytes:
    """Return what was compressed. Raises TooLargeOpened beyond so many bytes (a bomb is opened no further),
    and ValueError where it is none."""
    opened = zlib.decompressobj(WINDOW_BITS[encoding])
    try:
        found = opened.decompress(data, most_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"the message is no {encoding}") from error
    if len(found) > most_bytes:
        raise TooLargeOpened
    if not opened.eof or opened.unused_data:
        raise ValueError(f"the message is no whole {encoding}")
    return found
