"""Requests that stay in a phase for as long as a drill wants them there."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator

from protos.penstock.v1 import inference_pb2 as pb
from tests.chaos.world import stopped
from tests.support.client import request
from tests.support.stack import Stack

HELD_OPEN = {
    "retrieve": "retriever",
    "tokenize": "tokenizer",
    "route": "detokenizer",
    "replace": "decode",
}
"""The role whose standing still keeps a request in a phase; in the others it is its own length that does."""
LONG_PROMPT = 9_000
PATIENCE_S = 300.0
"""The time that a long prompt may take: on a machine that others keep busy, and that has no matrix unit."""
LONG_OUTPUT = 2_500
PROMPT_IDS = range(20, 380)
"""These ids are in the vocabulary of the models with trained weights and of those without."""


@contextlib.asynccontextmanager
async def held_open(stack: Stack, phase: str) -> AsyncIterator[None]:
    """Whoever would end the phase stands still."""
    role = HELD_OPEN.get(phase)
    async with stopped(*(stack.instances(role) if role else ())):
        yield


def request_in(phase: str) -> pb.GenerateRequest:
    """One that passes through the phase."""
    if phase == "prefill":
        return long_prompt_request(max_tokens=64)
    message = long_request(3)
    if phase == "retrieve":
        message.ClearField("text")
        message.chat.messages.add(role="user", content="What is a lease?")
        message.retrieval.CopyFrom(pb.Retrieval(enabled=True, may_degrade=False))
    return message


def long_request(seed: int) -> pb.GenerateRequest:
    return request("Once upon a time", max_tokens=LONG_OUTPUT, ignore_eos=True, temperature=1.0, seed=seed)


def long_prompt_request(max_tokens: int) -> pb.GenerateRequest:
    """New every time, so that no prefix cache has it."""
    message = request(random.choices(PROMPT_IDS, k=LONG_PROMPT), max_tokens=max_tokens, ignore_eos=True)
    message.ttft_deadline_ms = message.deadline_ms = round(PATIENCE_S * 1e3)
    return message
