"""One HTTP request: its body within bounds of size and time, and the way to answer it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from services.gateway.http.completions.error_object import FieldNames, SlowBody, error_object
from services.gateway.http.fields.json_body import read_json_body
from services.gateway.http.fields.json_fields import JsonFields
from shared.errors import InvalidRequest, PenstockError, TooLarge

BODY_TIMEOUT_S = 30.0
"""The longest time for the whole body of a request, from its headers on."""
FLUSH_TIMEOUT_S = 10.0
"""The longest time for the end of an answer, when nothing but its client is waited for."""
JSON = "application/json"
EVENTS = "text/event-stream"


class HttpCall:
    """`headers` go with every answer."""

    def __init__(self, request: web.BaseRequest, max_body_bytes: int, headers: Mapping[str, str]) -> None:
        self._request = request
        self._max_body_bytes = max_body_bytes
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

    async def read_json(self) -> JsonFields:
        """Raises TooLarge, SlowBody, or InvalidRequest for what is no JSON object."""
        return read_json_body(await self._read_body())

    async def _read_body(self) -> bytes:
        if (self._request.content_length or 0) > self._max_body_bytes:
            raise self._too_large()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                if self._request.headers.get("Expect", "").lower() == "100-continue":
                    await self._request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return await self._request.read()
        except TimeoutError as error:
            raise SlowBody(f"the body did not come within {BODY_TIMEOUT_S:.0f} s: send it faster") from error
        except web.HTTPRequestEntityTooLarge as error:
            raise self._too_large() from error
        except web.RequestPayloadError as error:
            raise InvalidRequest("the body came broken: send it again") from error

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
        await response.prepare(self._request)
        return response

    async def flush(self, response: web.StreamResponse) -> None:
        """Write what is left of the answer. A client that does not take it in time loses its connection, as
        does one whose answer has begun as another: nothing that is written then would be understood."""
        if self._begun not in (None, response):
            self.hang_up()
            return
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await response.prepare(self._request)
                await response.write_eof()
                await self._request.writer.drain()
        except (TimeoutError, ConnectionError):
            self.hang_up()

    def hang_up(self) -> None:
        """Close the connection without waiting for its client."""
        if self._request.transport is not None:
            self._request.transport.abort()
