"""Bounds of what clients of a gRPC server may do: each has a name, and what it keeps from us.

Those that people attack servers by are here by the names that the attacks got.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

MAX_HEADER_LIST_BYTES = 16 << 10
"""The headers of a call, each with 32 bytes beside its own, as HTTP/2 counts them. Beyond that the call is
RESOURCE_EXHAUSTED. Beyond four times that they are not read on, as those are that are short on the wire and
long when they are read (an HPACK bomb): the connection takes no more calls and ends with its open ones."""
MAX_HEADER_BLOCK_BYTES = 64 << 10
"""The same on the wire, in all its frames. Beyond that the call is RESOURCE_EXHAUSTED, and the connection
takes no more."""
MAX_CONTINUATIONS = 8
"""The frames that headers go on in. Beyond that it is as above, and a CONTINUATION flood, which never ends
them, ends the connection as other idle frames do."""
MAX_SETTINGS = 64
"""The settings in one frame; beyond that the connection ends."""
MAX_EARLY_PINGS = 2
"""The pings that may come sooner than a server allows, while it sends nothing; a PING flood ends the
connection, by the name that clients of gRPC know."""
MAX_RESETS = 2000
"""The calls that a client may give up, or have broken off by breaking a rule, at once, and RESETS_PER_S from
then on. A rapid reset, which begins calls and drops them, ends the connection."""
RESETS_PER_S = 200
MAX_IDLE_FRAMES = 2000
"""The frames that bring nothing, such as settings, windows, priorities, empty or small pieces, at once, and
IDLE_FRAMES_PER_S from then on, beside three for each of our own. A flood of them ends the connection."""
IDLE_FRAMES_PER_S = 200
MAX_UNSENT_BYTES = 64 << 10
"""The bytes that wait for the socket of one connection. Beyond that, where it is full, nothing is read."""
MAX_CALL_UNSENT_BYTES = 16 << 10
"""The bytes that wait for the client's window of one call, beside one message; more is not written."""
CONNECTION_WINDOW_BYTES = 1 << 20
"""The bytes that a client may send ahead of our leave, in all calls of a connection, and of one whose message
is wanted."""
MAX_LINGER_S = 30.0
"""The time for a client to take the rest of an answer whose method has ended, and for a full socket to take
anything; a slow reader loses the call, or the connection."""
MAX_HALF_S = 20.0
"""The time for the rest of a frame that has begun. Beyond that the connection ends: who sends a byte now and
then (Slowloris) holds nothing for long."""

LAST_WORDS_S = 1.0
"""The time for a client to hear why its connection ends; what it sends meanwhile is not looked at."""
MAX_IGNORED_BYTES = 4 << 20
"""The bytes that a client may send while it hears why its connection ends. Beyond that it hears no more."""


class CodecLimits(NamedTuple):
    """The parameters of the codec, by its names."""

    max_streams: int
    max_message_bytes: int
    stream_window_bytes: int
    connection_window_bytes: int
    max_header_list_bytes: int
    max_header_block_bytes: int
    max_continuations: int
    max_settings: int
    max_unsent_bytes: int
    max_stream_unsent_bytes: int
    min_ping_ms: int
    max_early_pings: int
    max_resets: int
    resets_per_s: int
    max_idle_frames: int
    idle_frames_per_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The limits of one server. `max_calls`: open ones of a connection; `handshake_s`: from accept until a
    client has said what it is; `idle_s`: without a call; `keepalive_s`: of silence until it is asked whether
    it is there, and `keepalive_timeout_s` for it to say anything."""

    max_connections: int = 1024
    max_calls: int = 100
    max_message_bytes: int = 4 << 20
    max_answer_bytes: int = 4 << 20
    unread_bytes: int = 64 << 10
    handshake_s: float = 10.0
    idle_s: float = 300.0
    keepalive_s: float = 60.0
    keepalive_timeout_s: float = 20.0
    min_ping_ms: int = 1000

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"{field.name} of a server is above 0")

    def codec(self) -> CodecLimits:
        return CodecLimits(
            max_streams=self.max_calls,
            max_message_bytes=self.max_message_bytes,
            stream_window_bytes=self.unread_bytes,
            connection_window_bytes=CONNECTION_WINDOW_BYTES,
            max_header_list_bytes=MAX_HEADER_LIST_BYTES,
            max_header_block_bytes=MAX_HEADER_BLOCK_BYTES,
            max_continuations=MAX_CONTINUATIONS,
            max_settings=MAX_SETTINGS,
            max_unsent_bytes=MAX_UNSENT_BYTES,
            max_stream_unsent_bytes=MAX_CALL_UNSENT_BYTES,
            min_ping_ms=self.min_ping_ms,
            max_early_pings=MAX_EARLY_PINGS,
            max_resets=max(MAX_RESETS, 2 * self.max_calls),
            resets_per_s=RESETS_PER_S,
            max_idle_frames=MAX_IDLE_FRAMES,
            idle_frames_per_s=IDLE_FRAMES_PER_S,
        )
