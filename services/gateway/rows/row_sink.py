"""The places that the plain rows of one stream are written to."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from services.gateway.rows.row_terms import Attribute, RowTerms


class CallSink(NamedTuple):
    """A call of gRPC on a connection of the native codec, which `flush` has sent. A message is at most
    `max_bytes` long; `room` is set to False where the client is to read first."""

    codec: object
    stream: int
    max_bytes: int
    room: Attribute
    flush: Callable[[], None]


class ChunkedBody(NamedTuple):
    """An answer in chunks, each of which is written at once unless `is_closing`; its bytes are counted at
    `written`."""

    is_closing: Callable[[], bool]
    written: tuple[Attribute, ...]


class EventSink(NamedTuple):
    """An event stream, which `put` writes an event to. Where it is a chunk of `chunks` it is taken, else
    `put` says with False that it is not. An event is `before`, the
    text as JSON, and `after`; where there is a `resume_token` its id says how much the client has with it,
    and `told_tokens` and `told_chars` count that."""

    put: Callable[[bytes], object]
    chunks: ChunkedBody | None
    before: bytes
    after: bytes
    resume_token: str
    told_tokens: Attribute
    told_chars: Attribute


class RowSink(NamedTuple):
    """One of the two, and the terms of who writes there."""

    sink: CallSink | EventSink
    terms: RowTerms
