"""The asks of a soak's clients: each of them is answered once undisturbed, to compare with."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise

import aiohttp

from penstock.client import AsyncClient, AsyncStream
from tests.chaos.traffic import KINDS, PROMPT

PATIENCE_S = 90.0
"""The deadline of calls that are to have whatever happens: longer than all that may happen at once."""
STREAM_TOKENS = 250
LONG_TOKENS = 1_000
SHORT_TOKENS = 24
NUMBERS = 8
"""So many different ones of each kind."""
QUESTIONS = (
    "How many tokens does a block hold?",
    "What is the default gRPC port of the gateway?",
    "What does the retriever do?",
    "Who may say what on the bus?",
)
RESUMES = 8
ID_LINE, DATA_LINE = b"id: ", b"data: "


@dataclass(slots=True)
class Heard:
    """The end and the answer of one call."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    finish: str = ""
    ends: int = 0
    passages: tuple[str, ...] = ()
    times_s: list[float] = field(default_factory=list)

    @property
    def content(self) -> tuple[str, tuple[int, ...], str, tuple[str, ...]]:
        """Return the parts that are the same whenever it is asked for."""
        return self.text, tuple(self.ids), self.finish, self.passages

    @property
    def pause_s(self) -> float:
        return max((later - sooner for sooner, later in pairwise(self.times_s)), default=0.0)

    def wrong(self) -> str:
        """Return the fault that no answer may have, whatever was asked; "" for none."""
        if self.ends != 1:
            return f"{self.ends} terminal events"
        if self.positions and self.positions != list(range(self.positions[0], self.positions[-1] + 1)):
            return "positions that are not in order, each once"
        return ""


@dataclass(frozen=True, slots=True)
class Door:
    """The ways in of one tenant: gRPC by the Python client, HTTP by aiohttp."""

    grpc: AsyncClient
    http: aiohttp.ClientSession
    model: str


Ask = Callable[[Door, int, Heard], Awaitable[None]]
"""Ask for the thing of a number; what comes is noted in `Heard` as it does."""


async def hear(stream: AsyncStream, heard: Heard) -> None:
    async for delta in stream:
        heard.text += delta.text
        heard.positions += range(delta.position, delta.position + len(delta.token_ids))
        heard.ids += delta.token_ids
        heard.times_s.append(time.monotonic())
    heard.ends, heard.finish = len(stream.ends), str(stream.end.finish_reason)
    heard.passages = tuple(passage.source for passage in stream.prompt.passages)


def stream_of(door: Door, number: int, tokens: int, deadline_s: float) -> AsyncStream:
    """One with all that sampling can ask for: penalties, stop strings, logprobs, grammars, schemas."""
    kind = KINDS[number % len(KINDS)]
    options = {**kind, "seed": number + 1, "max_tokens": tokens, "ignore_eos": True}
    return door.grpc.generate(f"{PROMPT} {number}", deadline_s=deadline_s, **options)


async def ask_stream(door: Door, number: int, heard: Heard) -> None:
    await hear(stream_of(door, number, STREAM_TOKENS, PATIENCE_S), heard)


async def ask_long(door: Door, number: int, heard: Heard) -> None:
    await hear(stream_of(door, number, LONG_TOKENS, PATIENCE_S), heard)


async def ask_with_passages(door: Door, number: int, heard: Heard) -> None:
    question = [("user", QUESTIONS[number % len(QUESTIONS)])]
    stream = door.grpc.generate(
        question,
        retrieve=2,
        retrieve_may_degrade=False,
        temperature=0.0,
        seed=1,
        max_tokens=SHORT_TOKENS,
        ignore_eos=True,
        deadline_s=PATIENCE_S,
    )
    await hear(stream, heard)


async def ask_search(door: Door, number: int, heard: Heard) -> None:
    found = await door.grpc.retrieve(
        QUESTIONS[number % len(QUESTIONS)], k=3, may_degrade=False, deadline_s=PATIENCE_S
    )
    heard.passages = tuple(f"{passage.source} {passage.score:.4f}" for passage in found.passages)
    heard.ends = 1


async def ask_whole(door: Door, number: int, heard: Heard) -> None:
    body = _body(door, number, SHORT_TOKENS)
    async with door.http.post("/v1/completions", json=body) as response:
        answer = await response.json()
        if response.status != 200:
            raise ConnectionError(f"{response.status} {answer}")
    (choice,) = answer["choices"]
    heard.text, heard.finish, heard.ends = choice["text"], choice["finish_reason"], 1


async def ask_events(door: Door, number: int, heard: Heard) -> None:
    """A stream of events, which goes on by `Last-Event-ID` where its gateway is gone."""
    body = {**_body(door, number, STREAM_TOKENS), "stream": True, "penstock": {"resumable": True}}
    last_id = ""
    for left in reversed(range(RESUMES)):
        headers = {"Last-Event-ID": last_id} if last_id else {}
        try:
            async with door.http.post("/v1/completions", json=body, headers=headers) as response:
                if response.status != 200:
                    raise ConnectionError(f"{response.status} {await response.text()}")
                async for line in response.content:
                    if line.startswith(ID_LINE):
                        last_id = line.removeprefix(ID_LINE).decode().strip()
                    elif line.startswith(DATA_LINE):
                        _take_event(line.removeprefix(DATA_LINE).strip(), heard)
        except (OSError, aiohttp.ClientError):
            if not left or not last_id:
                raise
        if heard.ends:
            return
    raise ConnectionError("its events ended without an end")


def _take_event(data: bytes, heard: Heard) -> None:
    if data == b"[DONE]":
        heard.ends += 1
        return
    chunk = json.loads(data)
    if "error" in chunk:
        raise ConnectionError(str(chunk["error"]))
    for choice in chunk["choices"]:
        heard.text += choice["text"]
        heard.finish = choice["finish_reason"] or heard.finish
        heard.times_s.append(time.monotonic())


def _body(door: Door, number: int, tokens: int) -> dict[str, object]:
    return {
        "model": door.model,
        "prompt": f"{PROMPT} {number} of many",
        "temperature": 1.0,
        "seed": number,
        "max_tokens": tokens,
        "ignore_eos": True,
    }


ASKS: dict[str, Ask] = {
    "stream": ask_stream,
    "events": ask_events,
    "whole": ask_whole,
    "passages": ask_with_passages,
    "search": ask_search,
    "long": ask_long,
}
