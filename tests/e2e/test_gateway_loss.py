"""A gateway is killed with its streams, and they go on at the other one: same text, nothing twice, no gap."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest

from penstock.client import AsyncClient, AsyncStream
from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from tests.e2e.conftest import options
from tests.support.client import Answer, generate
from tests.support.http import http_client
from tests.support.stack import Stack
from tests.support.wait import until

TIMEOUT_S = 60.0
PROMPT = "Once upon a time"
ASKED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0, "max_tokens": 300, "ignore_eos": True},
    {"temperature": 1.0, "seed": 7, "max_tokens": 200, "ignore_eos": True, "logprobs": 2},
    {"temperature": 0.8, "seed": 8, "max_tokens": 250, "regex": "[a-z ,.]{150,}"},
    {"temperature": 1.0, "seed": 9, "max_tokens": 300, "ignore_eos": True, "stop": ["qzj", "zzzz"]},
)
BODY = {
    "prompt": PROMPT,
    "temperature": 1.0,
    "seed": 7,
    "max_tokens": 200,
    "ignore_eos": True,
    "stream": True,
}
RESUMABLE = {**BODY, "penstock": {"resumable": True}}
BEGUN_TOKENS = 8
"""So many tokens of a stream have come when its gateway is killed."""


@pytest.fixture(scope="module")
def stack(model_dir: Path) -> Iterator[Stack]:
    with Stack(*options(model_dir, None, 1, "auto"), "--gateway", "2") as running:
        yield running


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

    @property
    def gateway(self) -> str:
        return self.stream.prompt.request_id.rpartition(".")[0]


async def kill_gateway(stack: Stack, name: str) -> None:
    (killed,) = [one for one in stack.instances("gateway") if one.id == name]
    os.kill(killed.pid, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{killed.pid}").exists(), timeout_s=TIMEOUT_S)


async def both_gateways(stack: Stack) -> None:
    """Wait until the launcher has started again what was killed."""
    await until(lambda: all(one.grpc for one in stack.instances("gateway")), timeout_s=TIMEOUT_S)


@asynccontextmanager
async def stub_of(stack: Stack) -> AsyncIterator[rpc.InferenceStub]:
    """A connection of its own, to whichever gateway takes it."""
    own = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(stack.grpc, options=own) as channel:
        yield rpc.InferenceStub(channel)


async def test_streams_of_a_killed_gateway_go_on_as_if_nothing_had_happened(stack: Stack) -> None:
    async with AsyncClient(stack.grpc) as client:
        undisturbed = [Read(client.generate(PROMPT, **asked)) for asked in ASKED]
        await asyncio.gather(*(read.go_on() for read in undisturbed))
        reads = [Read(client.generate(PROMPT, **asked)) for asked in ASKED]
        await asyncio.gather(*(read.go_on(BEGUN_TOKENS) for read in reads))
        first = [read.stream.prompt.request_id for read in reads]
        await kill_gateway(stack, reads[0].gateway)
        await asyncio.gather(*(read.go_on() for read in reads))
    for read, expected, request_id in zip(reads, undisturbed, first, strict=True):
        assert read.stream.prompt.request_id != request_id
        assert (read.text, read.ids, read.positions) == (expected.text, expected.ids, expected.positions)
        assert read.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
        usage, told = read.stream.end.usage, expected.stream.end.usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (told.prompt_tokens, told.completion_tokens)
        assert read.stream.end.finish_reason == expected.stream.end.finish_reason
    await stack.until_idle()


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


async def test_a_stream_of_events_goes_on_after_the_last_event_that_came(stack: Stack) -> None:
    await both_gateways(stack)
    whole, broken = Events(), Events()
    async with http_client(stack.http) as client:
        async with client.post("/v1/completions", json=BODY) as response:
            await whole.read(response)
        async with client.post("/v1/completions", json=RESUMABLE) as response:
            await broken.read(response, BEGUN_TOKENS)
            await kill_gateway(stack, response.headers["x-penstock-request-id"].rpartition(".")[0])
    async with http_client(stack.http) as client:
        headers = {"Last-Event-ID": broken.last_id}
        async with client.post("/v1/completions", json=RESUMABLE, headers=headers) as response:
            await broken.read(response)
    assert (broken.text, broken.finishes, broken.done) == (whole.text, ["length"], True)
    assert len(broken.names) == 1
    await stack.until_idle()


async def read_on(call: Any, answer: Answer) -> None:
    async for event in call:
        answer.add(event, 0.0)


async def test_a_client_that_comes_while_its_stream_still_runs_takes_it_over(stack: Stack) -> None:
    await both_gateways(stack)
    asked = pb.GenerateRequest(
        text=PROMPT, resumable=True, sampling=pb.Sampling(temperature=0.0, max_tokens=300, ignore_eos=True)
    )
    async with stub_of(stack) as stub, stub_of(stack) as other:
        whole = await generate(stub, asked)
        begun, first = Answer(), stub.Generate(asked, timeout=TIMEOUT_S)
        events = aiter(first)
        while len(begun.ids) < BEGUN_TOKENS:
            begun.add(await anext(events), 0.0)
        assert begun.prompt is not None
        token, received = begun.prompt.resume_token, len(begun.ids)
        again = Answer()
        resume = pb.ResumeRequest(token=token, received_tokens=received, request=asked)
        await read_on(other.Resume(resume, timeout=TIMEOUT_S), again)
        with pytest.raises(grpc.aio.AioRpcError):
            await read_on(events, begun)
        late = other.Resume(resume, timeout=TIMEOUT_S)
        assert (await late.read()).end.error.code == "stream_lost"
        assert await first.code() is grpc.StatusCode.CANCELLED
    assert begun.end is not None
    assert begun.end.error.code == "stream_taken_over"
    assert begun.ids[:received] + again.ids == whole.ids
    assert again.positions[0] == whole.positions[received]
