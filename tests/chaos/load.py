"""Load at a given rate, whatever comes of it: an open loop, as users are."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from tests.support.client import Answer, request

NARROW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 13))
"""The options of a client that lets little be sent ahead. One that reads more slowly than tokens come would
else be a second behind the gateway, and the gateway could not know."""
CLASSES = (pb.PRIORITY_HIGH, pb.PRIORITY_NORMAL, pb.PRIORITY_LOW)
CALL_SLACK_S = 10.0
"""A client waits so long beyond its deadline for the terminal event before it calls that a hang."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What every request of a load asks for. `grpc_deadline`: the deadline is told to gRPC alone."""

    output_tokens: int
    deadline_ms: int
    ttft_deadline_ms: int = 0
    grpc_deadline: bool = False

    def message(self, number: int, priority: pb.Priority) -> pb.GenerateRequest:
        message = request(
            f"Story {number}", temperature=1.0, seed=number, max_tokens=self.output_tokens, ignore_eos=True
        )
        message.priority = priority
        if not self.grpc_deadline:
            message.deadline_ms = self.deadline_ms
        if self.ttft_deadline_ms:
            message.ttft_deadline_ms = self.ttft_deadline_ms
        return message

    @property
    def timeout_s(self) -> float:
        """Of the gRPC call."""
        return self.deadline_ms / 1e3 + (0.0 if self.grpc_deadline else CALL_SLACK_S)


@dataclass(slots=True)
class Call:
    priority: pb.Priority
    answer: Answer
    total_s: float
    """The time until the call was over, on the client's clock."""
    ended_s: float = 0.0
    """When that was, since its load began; in a closed loop alone."""

    @property
    def outcome(self) -> str:
        return self.answer.outcome if self.answer.end is not None else f"bare {self.answer.status.name}"


@dataclass(slots=True)
class Load:
    """The calls of one load, and how long it took until the last of them had its end."""

    calls: list[Call] = field(default_factory=list)
    seconds: float = 0.0

    def outcomes(self) -> Counter[str]:
        return Counter(call.outcome for call in self.calls)

    def ended(self, outcome: str, priority: pb.Priority | None = None) -> list[Call]:
        return [c for c in self.calls if c.outcome == outcome and priority in (None, c.priority)]

    @property
    def goodput(self) -> float:
        """Output tokens per second of requests that finished."""
        return sum(len(call.answer.ids) for call in self.ended("finished")) / self.seconds


@asynccontextmanager
async def narrow_channel(address: str) -> AsyncIterator[rpc.InferenceStub]:
    async with grpc.aio.insecure_channel(address, options=NARROW) as channel:
        await channel.channel_ready()
        yield rpc.InferenceStub(channel)


Metadata = tuple[tuple[str, str], ...]


async def one_call(
    stub: rpc.InferenceStub, message: pb.GenerateRequest, timeout_s: float, metadata: Metadata = ()
) -> Call:
    answer, begun = Answer(), time.perf_counter()
    try:
        async for event in stub.Generate(message, timeout=timeout_s, metadata=metadata):
            answer.add(event, begun)
    except grpc.aio.AioRpcError as error:
        answer.status, answer.details = error.code(), error.details() or ""
    return Call(message.priority, answer, time.perf_counter() - begun)


async def closed_loop(
    stub: rpc.InferenceStub, shape: Shape, clients: int, seconds: float, *, metadata: Metadata = ()
) -> Load:
    """So many clients, each with one request at a time: the best that the stack can do."""
    load, begun, numbers = Load(), time.perf_counter(), iter(range(10**9))

    async def client() -> None:
        while time.perf_counter() - begun < seconds:
            message = shape.message(next(numbers), pb.PRIORITY_NORMAL)
            call = await one_call(stub, message, shape.timeout_s, metadata)
            call.ended_s = time.perf_counter() - begun
            load.calls.append(call)

    await asyncio.gather(*(client() for _ in range(clients)))
    load.seconds = time.perf_counter() - begun
    return load


async def open_loop(
    stub: rpc.InferenceStub,
    shapes: Sequence[Shape],
    rate: float,
    seconds: float,
    *,
    burst: int = 1,
    metadata: Metadata = (),
    seed: int = 11,
) -> Load:
    """`rate` requests a second in Poisson order, `burst` at a time; classes and shapes in turn."""
    drawn, load, begun = random.Random(seed), Load(), time.perf_counter()
    calls: list[asyncio.Task[Call]] = []
    at_s = 0.0
    while at_s < seconds:
        await asyncio.sleep(max(0.0, begun + at_s - time.perf_counter()))
        for _ in range(burst):
            number = len(calls)
            shape, priority = shapes[number % len(shapes)], CLASSES[number // len(shapes) % len(CLASSES)]
            call = one_call(stub, shape.message(number, priority), shape.timeout_s, metadata)
            calls.append(asyncio.create_task(call))
        at_s += drawn.expovariate(rate / burst)
    load.calls = list(await asyncio.gather(*calls))
    load.seconds = time.perf_counter() - begun
    return load
