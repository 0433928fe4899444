"""The other end of HTTP/2, in bytes: frames as a client writes them, and those of a server read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from shared.http2.limits import ServerLimits
from shared.http2.native_codec import new_connection

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
(
    *(DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE),
    CONTINUATION,
) = range(10)
ACK = END_STREAM = 1
END_HEADERS, PADDED, WITH_PRIORITY = 4, 8, 32
REQUEST = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/a.B/C"),
    (":authority", "here"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)
NO_ERROR, PROTOCOL, INTERNAL, FLOW, SETTINGS_TIME, CLOSED, SIZE, REFUSED, CANCEL, COMPRESSION = range(10)
CALM = 11


class WireFrame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def number(value: int, prefix_bits: int, first: int = 0) -> bytes:
    most = (1 << prefix_bits) - 1
    if value < most:
        return bytes((first | value,))
    out, value = bytearray((first | most,)), value - most
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode("latin-1")
    return number(len(raw), 7) + raw


def block(headers: Sequence[tuple[str | bytes, str | bytes]], first: int = 0) -> bytes:
    """Headers, literally; `first` 0x40 has them kept in the table."""
    return b"".join(bytes((first,)) + text(name) + text(value) for name, value in headers)


def headers(stream: int = 1, *more: tuple[str, str], end: bool = False) -> bytes:
    """The beginning of a call."""
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block((*REQUEST, *more)))


def message(data: bytes, *, compressed: int = 0) -> bytes:
    return bytes((compressed,)) + len(data).to_bytes(4, "big") + data


def data(stream: int, payload: bytes, *, end: bool = False) -> bytes:
    return frame(DATA, END_STREAM if end else 0, stream, payload)


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(
        SETTINGS, payload=b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in pairs)
    )


def window_update(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, more.to_bytes(4, "big"))


def reset(stream: int, code: int = CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def read_frames(sent: bytes) -> list[WireFrame]:
    found = []
    while sent:
        length = int.from_bytes(sent[:3], "big")
        assert len(sent) >= 9 + length, "half a frame was sent"
        found.append(WireFrame(sent[3], sent[4], int.from_bytes(sent[5:9], "big"), sent[9 : 9 + length]))
        sent = sent[9 + length :]
    return found


class CodecEnd:
    """A codec that has heard the beginning of a connection, and what it says."""

    def __init__(self, now_ms: int = 1000, **limits: Any) -> None:
        usual = replace(ServerLimits(), **{k: v for k, v in limits.items() if hasattr(ServerLimits(), k)})
        given = {k: v for k, v in limits.items() if not hasattr(ServerLimits(), k)}
        self.codec = new_connection(usual.codec()._replace(**given))
        self.now_ms = now_ms
        self.hear(PREFACE, settings())
        self.said()

    def hear(self, *parts: bytes) -> list[tuple[int, int, int, Any]]:
        """The events of these bytes."""
        return self.codec.receive(b"".join(parts), self.now_ms)

    def said(self) -> list[WireFrame]:
        return read_frames(self.codec.take())

    def failed(self, *parts: bytes) -> int:
        """The error code that these bytes end the connection with; -1: they do not."""
        events = self.hear(*parts)
        if not events or events[-1][0] != 9:
            return -1
        last = self.said()[-1]
        assert last.kind == GOAWAY
        assert int.from_bytes(last.payload[4:8], "big") == events[-1][2]
        assert self.hear(frame(PING, payload=bytes(8))) == []  # it hears no more
        return events[-1][2]
