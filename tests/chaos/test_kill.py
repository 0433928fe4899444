"""Streams survive the death of a worker, byte for byte (design: failure semantics)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from protos.penstock.v1 import inference_pb2_grpc as rpc
from tests.e2e.conftest import options
from tests.support.client import Answer, connect, request
from tests.support.models import draft_of, target_model
from tests.support.oracle import Oracle
from tests.support.stack import Stack
from tests.support.wait import until

NEW_TOKENS = 400
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(target_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def stack(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two of every worker that holds a stream."""
    model = oracle.model_dir
    draft = draft_of(model, tmp_path_factory.mktemp("draft"))
    two = ("--prefill", "2", "--detokenizer", "2", "--tokenizer", "2")
    with Stack(*options(model, draft, 2, "auto"), *two) as running:
        yield running


async def streams_while_killing(stack: Stack, prompt: list[int], role: str) -> list[Answer]:
    """Six streams; after some tokens of each, one instance of `role` that serves is killed with SIGKILL."""
    victim = stack.instances(role)[0]
    started = [asyncio.Event() for _ in range(6)]
    async with connect(stack.grpc) as stub:
        streams = [asyncio.create_task(follow(stub, prompt, event)) for event in started]
        async with asyncio.timeout(20):
            for event in started:
                await event.wait()
        os.kill(victim.pid, signal.SIGKILL)
        answers = await asyncio.gather(*streams)
    await until(lambda: restarted(stack, victim.id, victim.pid), timeout_s=60)
    return answers


async def follow(stub: rpc.InferenceStub, prompt: list[int], started: asyncio.Event) -> Answer:
    answer = Answer()
    async for event in stub.Generate(request(prompt, max_tokens=NEW_TOKENS, ignore_eos=True), timeout=60):
        answer.add(event, 0.0)
        if len(answer.ids) >= 5:
            started.set()
    return answer


def restarted(stack: Stack, instance: str, old_pid: int) -> bool:
    pids = {row.id: row.pid for row in stack.instances()}
    return pids[instance] not in (0, old_pid)


@pytest.mark.parametrize("role", ["decode", "detokenizer", "speculator", "tokenizer", "prefill"])
async def test_streams_finish_byte_identical_when_a_worker_is_killed(
    stack: Stack, oracle: Oracle, role: str
) -> None:
    prompt = oracle.encode(PROMPT)
    undisturbed = await streams_undisturbed(stack, prompt)
    answers = await streams_while_killing(stack, prompt, role)
    for answer in answers:
        assert answer.outcome == "finished"
        assert answer.ids == undisturbed.ids
        assert answer.text == undisturbed.text
        assert answer.positions == list(range(len(prompt), len(prompt) + len(answer.ids)))
    await stack.until_idle(timeout_s=30)


async def streams_undisturbed(stack: Stack, prompt: list[int]) -> Answer:
    async with connect(stack.grpc) as stub:
        return await follow(stub, prompt, asyncio.Event())
