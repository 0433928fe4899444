"""Streams tokens from a server as a frontend would: over Penstock's gRPC, or over any server's HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from protos.penstock.v1 import inference_pb2_grpc as rpc
from tests.support.client import request

REQUEST_DEADLINE_S = 120.0
START_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Streamed:
    """One answer of `tokens`: when its request was sent and when each event with text came."""

    sent_s: float
    arrived_s: tuple[float, ...]
    tokens: int

    @property
    def ttft_ms(self) -> float:
        return 1e3 * (self.arrived_s[0] - self.sent_s)

    @property
    def itl_ms(self) -> float:
        """The mean time between its tokens, however many came in an event."""
        return 1e3 * (self.arrived_s[-1] - self.arrived_s[0]) / max(1, self.tokens - 1)


class Door(Protocol):
    """Where a server takes requests."""

    def events(self, prompt: Sequence[int], max_tokens: int) -> AsyncGenerator[None]:
        """Something for each event that brings text, until the answer of exactly `max_tokens` has ended."""
        ...


async def ask(door: Door, prompt: Sequence[int], max_tokens: int) -> Streamed:
    """A whole answer. Raises TimeoutError; ConnectionError for one without text."""
    sent_s = time.perf_counter()
    async with asyncio.timeout(REQUEST_DEADLINE_S), aclosing(door.events(prompt, max_tokens)) as events:
        arrived = [time.perf_counter() async for _ in events]
    if not arrived:
        raise ConnectionError(f"an answer of {max_tokens} tokens had no text")
    return Streamed(sent_s, tuple(arrived), max_tokens)


@asynccontextmanager
async def watch(
    door: Door, prompts: Sequence[Sequence[int]], max_tokens: int, arrivals: Sequence[list[float]]
) -> AsyncIterator[None]:
    """Answers that stream while the block runs, all of them begun when it begins, given up when it ends;
    `arrivals` grow by the times of their events."""

    async def read(prompt: Sequence[int], times: list[float]) -> None:
        async with aclosing(door.events(prompt, max_tokens)) as events:
            async for _ in events:
                times.append(time.perf_counter())  # noqa: PERF401 - it is read meanwhile
        raise ConnectionError(f"a stream ended in the midst of the measurement, after {len(times)} events")

    readers = [asyncio.create_task(read(*pair)) for pair in zip(prompts, arrivals, strict=True)]
    try:
        async with asyncio.timeout(REQUEST_DEADLINE_S):
            while not all(arrivals):
                await asyncio.wait(readers, timeout=START_POLL_S, return_when=asyncio.FIRST_EXCEPTION)
                for reader in readers:
                    if reader.done():
                        reader.result()
        yield
        for reader in readers:
            if reader.done():
                reader.result()
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)


@dataclass(frozen=True, slots=True)
class GrpcDoor:
    """Penstock's own, over a channel that stays open, as frontends keep one."""

    stub: rpc.InferenceStub

    async def events(self, prompt: Sequence[int], max_tokens: int) -> AsyncGenerator[None]:
        async for event in self.stub.Generate(request(prompt, max_tokens=max_tokens, ignore_eos=True)):
            if event.text.token_ids:
                yield


@dataclass(frozen=True, slots=True)
class HttpDoor:
    """`POST /v1/completions` with server-sent events, in words that all servers read; a connection each."""

    host: str
    port: int
    model: str

    async def events(self, prompt: Sequence[int], max_tokens: int) -> AsyncGenerator[None]:
        body = {"model": self.model, "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0}
        more = {"stream": True, "ignore_eos": True}
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(self._post(json.dumps(body | more).encode()))
            await writer.drain()
            async for event in _events(reader):
                if any(choice.get("text") for choice in event.get("choices", ())):
                    yield
        finally:
            writer.close()

    def _post(self, body: bytes) -> bytes:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nConnection: close\r\n"
        return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each server-sent event. Raises ConnectionError for any status but 200."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise ConnectionError(head.decode() + (await reader.read()).decode(errors="replace"))
    chunked = b"transfer-encoding: chunked" in head.lower()
    unread = b""
    while data := await (_chunk(reader) if chunked else reader.read(1 << 16)):
        *events, unread = (unread + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            value = event.removeprefix(b"data:").strip()
            if value == b"[DONE]":
                return
            if event.startswith(b"data:"):
                yield json.loads(value)


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    size = int(await reader.readuntil(b"\r\n"), 16)
    return (await reader.readexactly(size + 2))[:-2]
