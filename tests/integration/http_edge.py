"""A gateway's HTTP edge before a scripted fleet, with a real client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.integration.gateway_peers import Fleet, Running, fleet, gateway
from tests.support.http import Reply, call, events, http_client
from tests.support.wait import until

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


@dataclass(slots=True)
class Edge:
    peers: Fleet
    running: Running
    client: aiohttp.ClientSession

    async def post(self, path: str, body: Any, **headers: str) -> Reply:
        return await call(self.client, path, body, **headers)

    def begin(self, path: str, body: Any, **headers: str) -> asyncio.Task[Reply]:
        return asyncio.create_task(self.post(path, body, **headers))

    async def answered(self, path: str, body: Any, **headers: str) -> Reply:
        """With the text "ab" in two tokens."""
        reply = self.begin(path, body, **headers)
        envelope, prefill = await self.peers.placed()
        await self.peers.text(envelope.request_id, prefill.prompt_len, "ab", finish="stop")
        return await reply

    async def idle(self) -> None:
        await until(lambda: self.running.registry.audit().held == ())


@asynccontextmanager
async def edge(nats_url: str, **options: object) -> AsyncIterator[Edge]:
    async with (
        fleet(nats_url) as peers,
        gateway(nats_url, **options) as running,
        http_client(running.http.address) as client,
    ):
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        yield Edge(peers, running, client)


async def streamed(here: Edge, path: str, body: dict[str, Any]) -> list[Any]:
    """All events of an answer "ab"."""
    asked = asyncio.create_task(here.client.post(path, json={**body, "stream": True}))
    envelope, prefill = await here.peers.placed()
    await here.peers.text(envelope.request_id, prefill.prompt_len, "ab", finish="stop")
    async with await asked as response:
        return [event async for event in events(response)]
