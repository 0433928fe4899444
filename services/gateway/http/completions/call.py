"""One HTTP request: its body within bounds of size and time, and the way to answer it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, cast

from aiohttp import web
from aiohttp.http import StreamWriter

from services.gateway.http.completions.body_room import BodyPlace, BodyRoom
from services.gateway.http.completions.error_object import (
    FieldNames,
    SlowBody,
    WrongContentType,
    error_object,
)
from services.gateway.http.fields.json_body import read_json_body
from services.gateway.http.fields.json_fields import JsonFields
from services.gateway.rows.row_sink import ChunkedBody
from services.gateway.rows.row_terms import RowTerms
from shared.errors import Cancelled, InvalidRequest, PenstockError, TooLarge

BODY_TIMEOUT_S = 30.0
"""The longest time for the whole body of a request, from its headers on."""
BODY_GRACE_S = 5.0
MIN_BODY_BYTES_PER_S = 1024
"""A body that has come more slowly after the grace is given up: who holds a connection sends."""
FLUSH_TIMEOUT_S = 10.0
"""The longest time for the end of an answer, when nothing but its client is waited for."""
MAX_SHOWN_CHARS = 80
CLOSED = "handler is closed"
"""The end of uvloop's sentence about a connection that has ended between two looks at it."""
JSON = "application/json"
EVENTS = "text/event-stream"


def body_time_s(come_bytes: int) -> float:
    """Return how long a body of which so much has come may have taken until more comes."""
    return min(BODY_TIMEOUT_S, BODY_GRACE_S + come_bytes / MIN_BODY_BYTES_PER_S)


MORE_THAN_CHUNKS = ("_compress", "_headers_buf", "_on_chunk_sent", "on_body_write", "length")
"""The attributes of aiohttp's writer of which none is set where all it does is to write chunks."""


class ChunkPlace(NamedTuple):
    """The place of an answer in chunks: `write` takes them as they go out, while `terms` hold."""

    write: Callable[[bytes], None]
    chunks: ChunkedBody
    terms: RowTerms


class Writing:
    """A block that writes to a client. Each event has one, and a generator as one would cost more than it."""

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if isinstance(error, ConnectionError) or (isinstance(error, RuntimeError) and CLOSED in str(error)):
            raise Cancelled("the client has left") from error


WRITING = Writing()


class HttpCall:
    """`headers` go with every answer."""

    def __init__(
        self, request: web.BaseRequest, max_body_bytes: int, body_room: BodyRoom, headers: Mapping[str, str]
    ) -> None:
        self._request = request
        self._max_body_bytes = max_body_bytes
        self._body_room = body_room
        self._headers = dict(headers)
        self._begun: web.StreamResponse | None = None
        """The answer whose head has been written, or is being written."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the request; names in any case."""
        return self._request.headers

    @property
    def authorization(self) -> list[str]:
        return self._request.headers.getall("Authorization", [])

    @property
    def takes_gzip(self) -> bool:
        """Whether an answer may be compressed: the client says so, and not with a weight of 0."""
        for coding in self._request.headers.get("Accept-Encoding", "").lower().split(","):
            name, _, weight = coding.replace(" ", "").partition(";q=")
            if name == "gzip":
                return weight.strip("0.") != "" if weight else True
        return False

    def has_current(self, tag: str) -> bool:
        """Return whether the client says that it has what `tag` (an `ETag`) names."""
        told = self._request.headers.get("If-None-Match", "")
        return tag.removeprefix("W/") in (each.strip().removeprefix("W/") for each in told.split(","))

    async def read_json(self, tenant: str) -> JsonFields:
        """Raises WrongContentType, TooLarge, SlowBody, Overloaded, or InvalidRequest for what is no JSON
        object."""
        self._check_content_type()
        with self._body_room.place(tenant) as place:
            return read_json_body(await self._read_body(tenant, place))

    async def _read_body(self, tenant: str, place: BodyPlace) -> bytes:
        announced = self._request.content_length or 0
        if announced > self._max_body_bytes:
            raise self._too_large()
        self._body_room.check(tenant, announced)
        if self._request.headers.get("Expect", "").lower() == "100-continue":
            with self.writing():
                await self._request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        began_s, body = asyncio.get_running_loop().time(), bytearray()
        while part := await self._read_part(began_s, len(body)):
            if len(body) + len(part) > self._max_body_bytes:
                raise self._too_large()
            place.take(len(part))
            body += part
        return bytes(body)

    async def _read_part(self, began_s: float, come_bytes: int) -> bytes:
        """Return what has come of the body since the last part, empty at its end. Raises SlowBody where
        nothing comes in the time that `come_bytes` have earned."""
        allowed_s = body_time_s(come_bytes)
        try:
            async with asyncio.timeout_at(began_s + allowed_s):
                return await self._request.content.readany()
        except TimeoutError as error:
            raise SlowBody(
                f"of the body {come_bytes} bytes came in {allowed_s:.1f} s: send all of it within "
                f"{BODY_TIMEOUT_S:g} s, and at least {MIN_BODY_BYTES_PER_S} bytes a second"
            ) from error
        except web.RequestPayloadError as error:
            raise InvalidRequest("the body came broken: send it again") from error

    def _check_content_type(self) -> None:
        """Raise WrongContentType unless it says JSON: pages of strangers can send any other type."""
        kind = self._request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != JSON and not (kind.startswith("application/") and kind.endswith("+json")):
            shown = repr(kind[:MAX_SHOWN_CHARS]) if kind else "missing"
            raise WrongContentType(
                f"the content type is {shown}: send {JSON} (`curl --json`, or -H 'content-type: {JSON}')"
            )

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body has more than {self._max_body_bytes} bytes: send less")

    # ---- answers --------------------------------------------------------------------------------------

    def json(self, body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
        return self.page(json.dumps(body).encode(), JSON, status, headers)

    def page(
        self, body: bytes, content_type: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> web.Response:
        all_headers = {**self._headers, **(headers or {}), "Content-Type": content_type}
        return web.Response(body=body, status=status, headers=all_headers)

    def error(
        self, error: PenstockError, headers: Mapping[str, str] | None = None, names: FieldNames = ()
    ) -> web.Response:
        status, own_headers, body = error_object(error, names)
        return self.json(body, status, {**own_headers, **(headers or {})})

    async def open_events(self, headers: Mapping[str, str]) -> web.StreamResponse:
        """Begin an answer of server-sent events, which no proxy on the way is to collect."""
        all_headers = {**self._headers, **headers, "Content-Type": f"{EVENTS}; charset=utf-8"}
        all_headers |= {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        self._begun = response = web.StreamResponse(headers=all_headers)
        with self.writing():
            await response.prepare(self._request)
        return response

    def put(self, data: bytes) -> bool:
        """Write more of an answer of events that has begun, without waiting. Return False where its client
        does not read what there is already, or has left."""
        request = self._request
        transport = request.transport
        if transport is None or transport.is_closing() or request.protocol.writing_paused:
            return False
        writing = cast("StreamWriter", request.writer).write(data, drain=False)
        try:
            writing.send(None)
        except StopIteration:
            return True
        writing.close()
        raise RuntimeError("aiohttp waits where it was asked not to: an answer may be cut")

    def body_place(self) -> ChunkPlace | None:
        """Return where `put` writes, for who does so beside aiohttp; None where that does more than write
        chunks, or is not the aiohttp that is known here."""
        request = self._request
        transport, writer = request.transport, cast("StreamWriter", request.writer)
        if (
            transport is None
            or not writer.chunked
            or any(getattr(writer, name, True) for name in MORE_THAN_CHUNKS)
        ):
            return None
        written = (writer, "buffer_size"), (writer, "output_size")
        paused = request.protocol, "_paused"
        if not all(hasattr(*each) for each in (*written, paused)):
            return None
        terms = RowTerms(((*paused, False),))
        return ChunkPlace(transport.write, ChunkedBody(transport.is_closing, written), terms)

    async def flush(self, response: web.StreamResponse) -> None:
        """Write what is left of the answer. A client that does not take it in time loses its connection, as
        does one whose answer has begun as another: nothing that is written then would be understood."""
        if self._begun not in (None, response):
            self.hang_up()
            return
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                with self.writing():
                    await response.prepare(self._request)
                    await response.write_eof()
                    await self._request.writer.drain()
        except (TimeoutError, Cancelled):
            self.hang_up()

    def writing(self) -> Writing:
        """Raise Cancelled in this block for a client that has left, whatever the library or the loop says."""
        return WRITING

    def hang_up(self) -> None:
        """Close the connection without waiting for its client."""
        if self._request.transport is not None:
            self._request.transport.abort()
