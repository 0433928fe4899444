"""Calls over HTTP to anything that speaks one of OpenAI's interfaces."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from socket import SO_LINGER, SOL_SOCKET
from types import SimpleNamespace
from typing import Any

import aiohttp

from services.cli.bench.targets.event_stream import DONE, DataEvents
from services.cli.bench.targets.openai_words import (
    PATHS,
    call_body,
    ended_by_error,
    hint_headers,
    read_chunk,
)
from services.cli.bench.targets.target import (
    CallEnded,
    CallFacts,
    CallOutcome,
    StreamPiece,
    TargetCall,
    TargetSampling,
)

CONNECT_TIMEOUT_S = 30.0
READ_BYTES = 1 << 16
"""The bytes of an answer that wait for a client that does not read; more stay with the server."""
MAX_PAGE_BYTES = 1 << 20
"""The most of a server's list of models or of an error's page; what is beyond is not read."""
NO_LINGER = struct.pack("ii", 1, 0)
"""The socket option with which closing a connection resets it."""
OUR_HEADERS = {"x-penstock-timeline": "true"}
"""Other servers take no notice of it."""


class OpenAiTarget:
    """`url` is that of the server, with or without /v1. Make it inside of a running loop."""

    def __init__(self, url: str, interface: str, sampling: TargetSampling, key: str = "") -> None:
        self._base = url.rstrip("/").removesuffix("/v1") + "/v1/"
        self._interface = interface
        self._sampling = sampling
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            headers=OUR_HEADERS | ({"authorization": f"Bearer {key}"} if key else {}),
            read_bufsize=READ_BYTES,
            trace_configs=[_telling_reuse()],
        )

    async def pieces(self, call: TargetCall, facts: CallFacts) -> AsyncGenerator[StreamPiece]:
        async with self._answer(call) as response:
            if response.status != 200:
                raise ended_by_error(response.status, await _error_of(response))
            async for data in _events(
                response
            ):  # also behind the mark of its end: the connection is free then
                if data == DONE:
                    facts.ended = True
                elif (piece := read_chunk(data, facts)) is not None:
                    yield piece
        if not facts.ended:
            raise CallEnded(CallOutcome.FAILED, "cut stream", "the stream ended before its end was said")

    @asynccontextmanager
    async def _answer(self, call: TargetCall) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send the call; leaving before the answer's end closes its connection. Raises CallEnded."""
        body = json.dumps(call_body(self._interface, call, self._sampling)).encode()
        headers = {"content-type": "application/json"}
        if call.deadline_ms:
            headers["x-penstock-deadline-ms"] = str(call.deadline_ms)
        headers |= hint_headers(call)
        path = self._base + PATHS[self._interface]
        try:
            async with await self._post(path, body, headers) as response:
                try:
                    yield response
                finally:
                    if call.alone:
                        _reset(response)
        except aiohttp.ClientError as error:
            raise _broken(error) from error

    async def _post(self, path: str, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """Send it anew where a connection that was kept had been closed by then, as servers may at any time.

        Raises aiohttp.ClientError.
        """
        while True:
            reused: list[bool] = []
            try:
                return await self._session.post(path, data=body, headers=headers, trace_request_ctx=reused)
            except aiohttp.ClientConnectionError:
                if not reused:
                    raise

    async def find_model(self) -> str:
        if self._sampling.model:
            return self._sampling.model
        try:
            async with self._session.get(self._base + "models") as response:
                if response.status != 200:
                    raise ended_by_error(response.status, await _error_of(response))
                listed = json.loads(await _page_of(response))
        except aiohttp.ClientError as error:
            raise _broken(error) from error
        except (ValueError, RecursionError) as error:
            raise CallEnded(CallOutcome.FAILED, "no list of models", "name one with --model") from error
        models = listed.get("data") if isinstance(listed, dict) else None
        if not isinstance(models, list) or not models or not isinstance(models[0], dict):
            raise CallEnded(CallOutcome.FAILED, "no models", "the server lists none; name one with --model")
        return str(models[0].get("id", ""))

    async def close(self) -> None:
        await self._session.close()


def _telling_reuse() -> aiohttp.TraceConfig:
    """Return what notes in the list of a request's context that its connection had been kept from another."""
    trace = aiohttp.TraceConfig()

    async def note(_session: aiohttp.ClientSession, context: SimpleNamespace, _: object) -> None:
        if context.trace_request_ctx is not None:
            context.trace_request_ctx.append(True)

    trace.on_connection_reuseconn.append(note)
    return trace


async def _events(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    stream = DataEvents()
    async for data in response.content.iter_any():
        for event in stream.feed(data):
            yield event


async def _page_of(response: aiohttp.ClientResponse) -> bytes:
    """Return a page, or its beginning where it is longer than any should be."""
    page = b""
    async for data in response.content.iter_any():
        page += data
        if len(page) >= MAX_PAGE_BYTES:
            break
    return page[:MAX_PAGE_BYTES]


async def _error_of(response: aiohttp.ClientResponse) -> Any:
    """Return the error object of a page, else its text."""
    text = (await _page_of(response)).decode(errors="replace")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return body.get("error", body) if isinstance(body, dict) else text


def _reset(response: aiohttp.ClientResponse) -> None:
    """Cut the connection of an answer that has not ended, as a client's machine does that is gone."""
    transport = response.connection.transport if response.connection is not None else None
    if transport is not None:
        socket = transport.get_extra_info("socket")
        socket.setsockopt(SOL_SOCKET, SO_LINGER, NO_LINGER)
        transport.abort()


def _broken(error: aiohttp.ClientError) -> CallEnded:
    return CallEnded(CallOutcome.FAILED, f"connection: {type(error).__name__}", str(error))
