"""Streams that a test reads up to some place, where it kills their gateway, and from there to their end."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import aiohttp

from penstock.client import AsyncStream


@dataclass
class Read:
    """The deltas of a stream, and how many tokens have come."""

    stream: AsyncStream
    text: str = ""
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    async def go_on(self, tokens: int | None = None) -> None:
        """Read to the end, or until so many tokens have come."""
        async for delta in self.stream:
            self.text += delta.text
            self.positions += range(delta.position, delta.position + len(delta.token_ids))
            self.ids += delta.token_ids
            self.logprobs += [each.logprob for each in delta.logprobs]
            if tokens is not None and len(self.ids) >= tokens:
                return


@dataclass
class Events:
    """What came of a stream of events."""

    text: str = ""
    last_id: str = ""
    names: set[str] = field(default_factory=set)
    finishes: list[str] = field(default_factory=list)
    done: bool = False

    async def read(self, response: aiohttp.ClientResponse, texts: int | None = None) -> None:
        """Read to the end, or until so many events with text have come."""
        assert response.status == 200, await response.text()
        left = texts
        async for raw in response.content:
            line = raw.decode().strip()
            if line.startswith("id: "):
                self.last_id = line.removeprefix("id: ")
            elif line == "data: [DONE]":
                self.done = True
            elif line.startswith("data: "):
                chunk = json.loads(line.removeprefix("data: "))
                self.names.add(chunk["id"])
                for choice in chunk["choices"]:
                    self.text += choice["text"]
                    self.finishes += [choice["finish_reason"]] if choice["finish_reason"] else []
                    left = left and left - 1
            if left == 0:
                return
