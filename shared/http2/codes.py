"""The codec's events, and the error codes of HTTP/2 that are said from here."""

from __future__ import annotations

from enum import IntEnum

PLENTY = 1
"""The code of a call whose headers were too many."""


class CodecEvent(IntEnum):
    """The kinds of what `Connection.receive` and `Connection.want` return."""

    CALL = 1
    MESSAGE = 2
    END = 3
    TOO_LARGE = 4
    BROKEN = 5
    RESET = 6
    PONG = 7
    LEAVING = 8
    FAILED = 9
    RETIRE = 10


class Http2Error(IntEnum):
    """A few of the codes of RFC 9113, section 7."""

    NONE = 0
    CANCEL = 8
