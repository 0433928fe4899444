"""Server-sent events of one call. The head goes out with the first: until then another status can.

An event with a `type` is named by it. What ends a stream in OpenAI's older interfaces is `DONE`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

from aiohttp import web

from services.gateway.http.completions.call import FLUSH_TIMEOUT_S, HttpCall
from services.gateway.rows.row_sink import ChunkedBody
from services.gateway.rows.row_terms import RowTerms
from shared.errors import Cancelled

DONE = b"data: [DONE]\n\n"
_PLACE = "\0text\0"
"""Stands for the text of a frame while that is made; no name that a frame has can end like this."""


class TextFrame:
    """An event that is always the same but for one text: written without making the rest of it again."""

    def __init__(self, event_of: Callable[[str], Mapping[str, Any]]) -> None:
        place = encode_basestring_ascii(_PLACE).encode()
        self._before, _, self._after = _event(event_of(_PLACE)).rpartition(place)

    @property
    def parts(self) -> tuple[bytes, bytes]:
        """Return what stands before the text, and after it."""
        return self._before, self._after

    def around(self, text: str) -> bytes:
        return self._before + encode_basestring_ascii(text).encode() + self._after


class EventPlace(NamedTuple):
    """The place of an event that is the same but for its text, `before` and `after` that; `terms` hold
    while it may be."""

    put: Callable[[bytes], object]
    chunks: ChunkedBody | None
    before: bytes
    after: bytes
    terms: RowTerms


class EventStream:
    def __init__(self, call: HttpCall, headers: Mapping[str, str]) -> None:
        self._call = call
        self._headers = headers
        self._response: web.StreamResponse | None = None
        self._opening = asyncio.Lock()
        self._stuck = False

    @property
    def started(self) -> bool:
        return self._response is not None

    async def send(self, *events: Mapping[str, Any], last_id: str = "") -> None:
        """Write in one go; return when the client has room for more. Raises Cancelled when it is gone.

        `last_id` is the id of the last one, "" for none.
        """
        written = list(map(_event, events))
        if last_id:
            written.insert(-1, _id_line(last_id))
        await self._write(b"".join(written))

    async def send_text(self, frame: TextFrame, text: str, event_id: str = "") -> None:
        """The same for one event."""
        await self._write(_text_event(frame, text, event_id))

    def put_text(self, frame: TextFrame, text: str, event_id: str = "") -> bool:
        """Write one event at once where the stream has begun and its client reads; whether it was written."""
        if self._response is None or self._stuck:
            return False
        return self._call.put(_text_event(frame, text, event_id))

    def place(self, frame: TextFrame) -> EventPlace | None:
        """Return where `put_text` writes, None where it would not."""
        if self._response is None or self._stuck:
            return None
        body, own = self._call.body_place(), RowTerms(((self, "_stuck", False),))
        if body is None:
            return EventPlace(self._call.put, None, *frame.parts, own)
        return EventPlace(body.write, body.chunks, *frame.parts, RowTerms.of_all((own, body.terms)))

    async def finish(self, last: Mapping[str, Any] | None, mark: bytes = DONE) -> web.StreamResponse:
        """End with one more event, if any; a client that does not take it in time loses its connection."""
        response = self._response or await self._open()
        if self._stuck:
            self._call.hang_up()
            return response
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await self._write((b"" if last is None else _event(last)) + mark)
        except (TimeoutError, Cancelled):
            self._call.hang_up()
        return response

    async def _write(self, data: bytes) -> None:
        response = self._response or await self._open()
        try:
            with self._call.writing():
                await response.write(data)
        except asyncio.CancelledError:
            # The library lets nobody wait for this client again, and what it was sent may be cut.
            self._stuck = True
            raise

    async def _open(self) -> web.StreamResponse:
        """Once, whichever of several writers comes first."""
        async with self._opening:
            if self._response is None:
                self._response = await self._call.open_events(self._headers)
            return self._response


def _text_event(frame: TextFrame, text: str, event_id: str) -> bytes:
    return _id_line(event_id) + frame.around(text) if event_id else frame.around(text)


def _id_line(event_id: str) -> bytes:
    return f"id: {event_id}\n".encode()


def _event(data: Mapping[str, Any]) -> bytes:
    """Letters of ASCII alone: some clients take every line separator of Unicode for the end of a line."""
    name = f"event: {data['type']}\n" if "type" in data else ""
    return f"{name}data: {json.dumps(data)}\n\n".encode()
