"""A real HTTP client for tests of the gateway's HTTP edge."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

CALL_TIMEOUT_S = 150.0


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.body["error"]
        return error


@asynccontextmanager
async def http_client(address: str, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)
    async with aiohttp.ClientSession(f"http://{address}", timeout=timeout, **options) as client:
        yield client


async def call(
    client: aiohttp.ClientSession, path: str, body: Any = None, method: str = "", **headers: str
) -> Reply:
    """`body` is sent as JSON, bytes as they are; underscores in the names of headers are hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        named.setdefault("content-type", "application/json")
    data = body if body is None or isinstance(body, bytes) else json.dumps(body)
    async with client.request(
        method or ("GET" if body is None else "POST"), path, data=data, headers=named
    ) as response:
        text = await response.text()
        is_json = response.content_type == "application/json"
        return Reply(response.status, response.headers, json.loads(text) if is_json else text)


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    """The data of each event: parsed, but for the last, which is [DONE]."""
    async for line in response.content:
        if line.startswith(b"data: "):
            data = line.removeprefix(b"data: ").strip()
            yield "[DONE]" if data == b"[DONE]" else json.loads(data)
