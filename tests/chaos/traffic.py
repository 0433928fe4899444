"""Live streams for drills: everything a request can ask for, and what an undisturbed run answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import grpc

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from shared.engine.native.library import library
from tests.support.client import Answer, request

PROMPT = "Once upon a time there was a"
STREAM_TIMEOUT_S = 240.0
STARTED_TOKENS = 5
ROUNDING = 1e-3
"""The error of a log-probability, where the kernels do not run."""
"""A stream with so many tokens is live: prefill has nothing to do with it any more."""

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"names": {"type": "array", "items": {"type": "string"}, "minItems": 400}},
        "required": ["names"],
    }
)

KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_k": 40, "top_p": 0.95},
    {"temperature": 0.9, "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"temperature": 0.8, "logprobs": 3},
    {"temperature": 1.0, "stop": ["never said, I think"], "min_p": 0.02},
    {"temperature": 1.0, "regex": "([a-z ]{3,9}[,.] ?){400}"},
    {"temperature": 0.7, "json_schema": SCHEMA},
)
"""Sampling fields of the streams, taken in turn, each stream with a seed of its own."""


def stream_requests(count: int, tokens: int, *, tail: str = "") -> list[pb.GenerateRequest]:
    """`count` different requests of up to `tokens` tokens each; the same ones at every call."""
    kinds = itertools.islice(itertools.cycle(KINDS), count)
    return [
        request(f"{PROMPT} {number} {tail}", **kind, seed=number + 1, max_tokens=tokens, ignore_eos=True)
        for number, kind in enumerate(kinds)
    ]


@dataclass(slots=True)
class Stream:
    """One call: its answer, when its tokens came (monotonic seconds), and whether it is live."""

    message: pb.GenerateRequest
    answer: Answer = field(default_factory=Answer)
    token_times_s: list[float] = field(default_factory=list)
    logprobs: list[pb.Logprob] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    stops_reading: bool = False
    """Once it is live, until `reads_on` is set."""
    reads_on: asyncio.Event = field(default_factory=asyncio.Event)
    call: rpc.GenerateCall | None = None

    async def follow(self, stub: rpc.InferenceStub, timeout_s: float = STREAM_TIMEOUT_S) -> Stream:
        begun = time.perf_counter()
        self.call = stub.Generate(self.message, timeout=timeout_s)
        try:
            async for event in self.call:
                self.answer.add(event, begun)
                if event.text.token_ids:
                    self.token_times_s.append(time.monotonic())
                    self.logprobs += event.text.logprobs
                if len(self.answer.ids) >= STARTED_TOKENS:
                    self.started.set()
                    if self.stops_reading:
                        await self.reads_on.wait()
        except grpc.aio.AioRpcError as error:
            self.answer.status, self.answer.details = error.code(), error.details() or ""
        except asyncio.CancelledError:
            if not self.call.cancelled():
                self.call.cancel()  # a read that is cancelled while its call is being sent does not
                raise
            self.answer.status = grpc.StatusCode.CANCELLED  # this call was dropped, not its task
        finally:
            self.started.set()
        return self

    @property
    def outcome(self) -> str:
        return self.answer.outcome if self.answer.end is not None else f"no end: {self.answer.status.name}"

    @property
    def pause_s(self) -> float:
        """The longest silence between two deliveries."""
        return max((later - sooner for sooner, later in pairwise(self.token_times_s)), default=0.0)

    def differs_from(self, undisturbed: Stream) -> str:
        """The first thing in which this stream is not that one, byte for byte; "" for none."""
        mine, wanted = self.answer, undisturbed.answer
        if self.outcome != undisturbed.outcome:
            return f"{self.outcome} instead of {undisturbed.outcome}: {mine.details}"
        if mine.ends != 1:
            return f"{mine.ends} terminal events"
        if mine.positions and mine.positions != list(range(mine.positions[0], mine.positions[-1] + 1)):
            return "positions that are not in order, each once"
        if mine.ids != wanted.ids:
            same = next((i for i, (a, b) in enumerate(zip(mine.ids, wanted.ids, strict=False)) if a != b), -1)
            return f"other tokens from {same} on ({len(mine.ids)} and {len(wanted.ids)})"
        if mine.text != wanted.text:
            return "other text"
        if mine.finish_reason != wanted.finish_reason:
            return f"finished by {mine.finish_reason}"
        return "" if same_logprobs(self.logprobs, undisturbed.logprobs) else "other logprobs"


def same_logprobs(mine: Sequence[pb.Logprob], wanted: Sequence[pb.Logprob]) -> bool:
    """Bit for bit where the compiled kernels run; elsewhere a sum of torch depends on what else is in the
    batch, in its last bits."""
    if library() is not None:
        return list(mine) == list(wanted)
    return len(mine) == len(wanted) and all(
        one.token_id == other.token_id
        and math.isclose(one.logprob, other.logprob, abs_tol=ROUNDING)
        and len(one.top) == len(other.top)
        for one, other in zip(mine, wanted, strict=True)
    )


async def run_streams(stub: rpc.InferenceStub, messages: Sequence[pb.GenerateRequest]) -> list[Stream]:
    """All at once, to their ends."""
    return list(await asyncio.gather(*(Stream(message).follow(stub) for message in messages)))


async def all_started(streams: Sequence[Stream], timeout_s: float = STREAM_TIMEOUT_S) -> None:
    async with asyncio.timeout(timeout_s):
        for stream in streams:
            await stream.started.wait()


def differences(streams: Sequence[Stream], undisturbed: Sequence[Stream]) -> list[str]:
    """One sentence for each stream that is not byte-identical."""
    return [
        f"stream {number}: {difference}"
        for number, (stream, wanted) in enumerate(zip(streams, undisturbed, strict=True))
        if (difference := stream.differs_from(wanted))
    ]
