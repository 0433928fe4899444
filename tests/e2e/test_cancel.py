"""Invariants 2 and 7: whatever way a request ends, everything taken for it is given back within a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from tests.e2e.conftest import GetStack
from tests.support.client import connect, generate, request
from tests.support.oracle import Oracle

RELEASE_TIMEOUT_S = 20.0
"""A busy machine may need so long; how soon it is on a quiet one the drills measure."""
LONG = 400


async def test_a_client_that_leaves_in_mid_stream_frees_everything_and_disturbs_nobody(
    get_stack: GetStack, oracle: Oracle
) -> None:
    stack = get_stack(3, True, "nats")
    prompt = oracle.encode("Once upon a time")
    async with connect(stack.grpc) as stub:
        other = asyncio.create_task(generate(stub, request(prompt, max_tokens=300)))
        call = stub.Generate(request(prompt, max_tokens=LONG, ignore_eos=True, temperature=1.0, seed=9))
        seen = 0
        async for event in call:
            seen += len(event.text.token_ids)
            if seen >= 10:
                break
        call.cancel()
        answer = await other
        assert answer.ids == oracle.greedy(prompt, 300, answer.ids)
    await stack.until_idle(RELEASE_TIMEOUT_S)


async def test_a_client_that_leaves_before_the_first_token_frees_everything(
    get_stack: GetStack, oracle: Oracle
) -> None:
    stack = get_stack(3, True, "nats")
    prompt = oracle.encode("Once upon a time " * 30)[:400]
    async with connect(stack.grpc) as stub:
        calls = [stub.Generate(request(prompt, max_tokens=LONG, ignore_eos=True)) for _ in range(8)]
        for call in calls:
            await call.read()  # the prompt info: the request is under way, no token has come
            call.cancel()
    await stack.until_idle(RELEASE_TIMEOUT_S)


async def test_calls_dropped_at_any_moment_leave_nothing(get_stack: GetStack, oracle: Oracle) -> None:
    stack = get_stack(3, True, "nats")
    async with connect(stack.grpc) as stub:
        for delay_ms in range(0, 24, 2):
            call = stub.Generate(request("Once upon a time", max_tokens=LONG, ignore_eos=True))
            with pytest.raises((TimeoutError, asyncio.CancelledError)):
                await asyncio.wait_for(read_all(call), delay_ms / 1000)
            call.cancel()
    await stack.until_idle(RELEASE_TIMEOUT_S)


async def read_all(call: AsyncIterable[pb.GenerateEvent]) -> None:
    async for _ in call:
        pass


async def test_a_broken_connection_is_a_cancel(get_stack: GetStack) -> None:
    stack = get_stack(3, True, "nats")
    async with connect(stack.grpc) as stub:
        call = stub.Generate(request("Once upon a time", max_tokens=LONG, ignore_eos=True))
        async for event in call:
            if event.text.token_ids:
                break
    await stack.until_idle(RELEASE_TIMEOUT_S)


async def test_a_total_deadline_ends_as_expired_names_the_hop_and_holds_nothing(get_stack: GetStack) -> None:
    stack = get_stack(3, True, "nats")
    message = request("Once upon a time", max_tokens=480, ignore_eos=True)
    message.deadline_ms = 150
    await stack.until_idle()  # what others left in a queue would have it shed
    async with connect(stack.grpc) as stub:
        answer = await generate(stub, message)
    assert answer.outcome == "expired"
    assert answer.status is grpc.StatusCode.DEADLINE_EXCEEDED
    assert answer.end is not None
    assert answer.end.error.hop
    await stack.until_idle(RELEASE_TIMEOUT_S)


async def test_a_ttft_deadline_that_cannot_be_met_ends_as_expired_or_shed_before_any_token(
    get_stack: GetStack, oracle: Oracle
) -> None:
    stack = get_stack(3, True, "nats")
    message = request(oracle.encode("Once upon a time " * 30)[:480], max_tokens=4)
    message.ttft_deadline_ms = 1
    async with connect(stack.grpc) as stub:
        answer = await generate(stub, message)
    assert answer.outcome in ("expired", "shed")
    assert not answer.ids
    assert answer.end is not None
    assert answer.end.error.hop
    await stack.until_idle(RELEASE_TIMEOUT_S)


async def test_the_grpc_deadline_of_the_call_counts(get_stack: GetStack) -> None:
    stack = get_stack(3, True, "nats")
    message = request("Once upon a time", max_tokens=480, ignore_eos=True)
    await stack.until_idle()
    async with connect(stack.grpc) as stub:
        for timeout_s in (0.2, 0.4, 0.8):  # one in which a busy machine expects a first token is not shed
            answer = await generate(stub, message, timeout_s=timeout_s)
            if answer.status is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                break
    assert answer.status is grpc.StatusCode.DEADLINE_EXCEEDED
    await stack.until_idle(RELEASE_TIMEOUT_S)


async def test_every_request_ends_in_exactly_one_terminal_event(get_stack: GetStack) -> None:
    stack = get_stack(3, True, "nats")
    messages = [request("Once upon a time", max_tokens=n, seed=n) for n in (1, 2, 40)]
    messages.append(pb.GenerateRequest())
    async with connect(stack.grpc) as stub:
        answers = await asyncio.gather(*(generate(stub, message) for message in messages))
    assert [answer.ends for answer in answers] == [1, 1, 1, 1]
    assert [answer.outcome for answer in answers] == ["finished", "finished", "finished", "failed"]
