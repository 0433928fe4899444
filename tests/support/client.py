"""A gRPC client as a frontend would write it, with what the tests want to know of a stream."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc

CALL_TIMEOUT_S = 150.0


@dataclass(slots=True)
class Answer:
    """Everything one call streamed. `positions` are those of the ids, one each; times are of arrival."""

    prompt: pb.PromptInfo | None = None
    text: str = ""
    deltas: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    prompt_logprobs: list[pb.Logprob] = field(default_factory=list)
    end: pb.Terminal | None = None
    ends: int = 0
    status: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""
    ttft_us: int = 0
    total_us: int = 0

    @property
    def outcome(self) -> str:
        assert self.end is not None, f"no terminal event: {self.status} {self.details}"
        return pb.Outcome.Name(self.end.outcome).removeprefix("OUTCOME_").lower()

    @property
    def finish_reason(self) -> str:
        assert self.end is not None
        return pb.FinishReason.Name(self.end.finish_reason).removeprefix("FINISH_REASON_").lower()

    def add(self, event: pb.GenerateEvent, started: float) -> None:
        kind = event.WhichOneof("event")
        if kind == "prompt":
            assert self.prompt is None
            assert not self.ids
            self.prompt = event.prompt
        elif kind == "prompt_logprobs":
            assert not self.ids
            assert event.prompt_logprobs.position == len(self.prompt_logprobs)
            self.prompt_logprobs += event.prompt_logprobs.logprobs
        elif kind == "text":
            assert self.end is None
            if event.text.token_ids and not self.ids:
                self.ttft_us = round((time.perf_counter() - started) * 1e6)
            self.text += event.text.text
            self.deltas.append(event.text.text)
            first = event.text.position
            self.positions += range(first, first + len(event.text.token_ids))
            self.ids += event.text.token_ids
        else:
            self.end = event.end
            self.ends += 1
            self.total_us = round((time.perf_counter() - started) * 1e6)


def request(prompt: str | Sequence[int], **sampling: Any) -> pb.GenerateRequest:
    """A request for text or token ids; keywords are fields of Sampling (temperature 0 unless given)."""
    sampling.setdefault("temperature", 0.0)
    message = pb.GenerateRequest(sampling=pb.Sampling(**sampling))
    if isinstance(prompt, str):
        message.text = prompt
    else:
        message.token_ids.ids.extend(prompt)
    return message


@asynccontextmanager
async def connect(address: str) -> AsyncIterator[rpc.InferenceStub]:
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        yield rpc.InferenceStub(channel)


async def generate(
    stub: rpc.InferenceStub,
    message: pb.GenerateRequest,
    timeout_s: float = CALL_TIMEOUT_S,
    metadata: Sequence[tuple[str, str]] = (),
) -> Answer:
    answer = Answer()
    started = time.perf_counter()
    call = stub.Generate(message, timeout=timeout_s, metadata=tuple(metadata))
    try:
        async for event in call:
            answer.add(event, started)
    except grpc.aio.AioRpcError as error:
        answer.status, answer.details = error.code(), error.details() or ""
    finally:
        call.cancel()  # a read that is cancelled while its call is being sent does not
    return answer
