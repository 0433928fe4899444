"""Several choices of one call over gRPC: each with its events on one stream, and one end of the call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from penstock.client import AsyncClient, Client, InvalidRequest
from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.choices import MAX_CHOICES
from shared.errors import EngineFault
from shared.messages import Open, Prefill
from tests.integration.gateway_peers import Fleet, Running, ask, fleet, gateway
from tests.support.client import Answer, generate
from tests.support.wait import until


@asynccontextmanager
async def serving(nats_url: str, **options: object) -> AsyncIterator[tuple[Fleet, Running]]:
    async with fleet(nats_url) as peers, gateway(nats_url, **options) as running:
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        yield peers, running


def wanted(n: int, **sampling: object) -> pb.GenerateRequest:
    message = ask("hello", **sampling)
    message.n = n
    return message


async def read_choices(running: Running, message: pb.GenerateRequest) -> tuple[list[Answer], grpc.StatusCode]:
    answers: dict[int, Answer] = {}
    started = time.perf_counter()
    call = running.stub.Generate(message, timeout=60)
    try:
        async for event in call:
            choice = getattr(event, event.WhichOneof("event") or "").choice
            answers.setdefault(choice, Answer()).add(event, started)
    except grpc.aio.AioRpcError:
        pass
    return [answers[choice] for choice in sorted(answers)], await call.code()


async def placed(peers: Fleet, count: int) -> list[tuple[str, Prefill]]:
    """The requests by their seeds, when all of them are placed."""
    await until(lambda: len(peers["detokenizer-0"].of(Open)) == count)
    await until(lambda: len(peers["prefill-0"].of(Prefill)) == count)
    found = [(e.request_id, m) for e, m in peers["prefill-0"].of(Prefill) if isinstance(m, Prefill)]
    return sorted(found, key=lambda one: one[1].sampling.seed)


async def test_each_choice_is_a_request_with_its_own_seed_text_and_end(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        reading = asyncio.create_task(read_choices(running, wanted(3, seed=7)))
        found = await placed(peers, 3)
        for request_id, prefill in reversed(found):
            await peers.text(request_id, prefill.prompt_len, f"{prefill.sampling.seed}", finish="stop")
        answers, status = await reading
    assert [answer.text for answer in answers] == ["7", "8", "9"]
    assert [answer.prompt.seed for answer in answers if answer.prompt] == [7, 8, 9]
    assert [answer.prompt.request_id for answer in answers if answer.prompt] == [each for each, _ in found]
    assert [(answer.outcome, answer.ends) for answer in answers] == [("finished", 1)] * 3
    assert status is grpc.StatusCode.OK


async def test_texts_of_choices_come_beside_each_other_as_they_are_generated(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        call = running.stub.Generate(wanted(2, seed=0), timeout=60)
        (first, _), (second, _) = await placed(peers, 2)
        coming = (event.text async for event in call if event.WhichOneof("event") == "text")
        told = []
        for request_id, position in ((first, 5), (second, 5), (first, 6)):
            await peers.text(request_id, position, "x")
            told.append((await anext(coming)).choice)
        for request_id, position in ((first, 7), (second, 6)):
            await peers.text(request_id, position, "", ids=(), finish="stop")
        assert [text.choice async for text in coming if text.text] == []
        assert await call.code() is grpc.StatusCode.OK
    assert told == [0, 1, 0]


async def test_when_one_choice_fails_the_others_are_cancelled_and_the_call_ends_as_that_one(
    nats_url: str,
) -> None:
    async with serving(nats_url, max_replacements=0) as (peers, running):
        reading = asyncio.create_task(read_choices(running, wanted(3, seed=0)))
        found = await placed(peers, 3)
        await peers.text(found[0][0], 5, "a", finish="stop")
        await peers.lost(found[1][0], 1, EngineFault.code)
        answers, status = await reading
        await until(lambda: running.registry.audit().held == ())
        await until(lambda: [why for _, why in peers.cancels().get("decode-0", [])].count("cancelled") == 1)
    assert [answer.outcome for answer in answers] == ["finished", "failed", "cancelled"]
    assert status is grpc.StatusCode.UNAVAILABLE


async def test_a_dropped_call_cancels_all_of_its_choices(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        call = running.stub.Generate(wanted(3), timeout=60)
        await placed(peers, 3)
        call.cancel()
        await until(lambda: running.registry.audit().held == ())
        await until(lambda: len(peers.cancels().get("decode-0", ())) == 3)


async def test_no_choice_is_begun_when_there_is_no_room_for_all(nats_url: str) -> None:
    async with serving(nats_url, max_sessions=2) as (_, running):
        answer = await generate(running.stub, wanted(3))
        await until(lambda: running.registry.audit().held == ())
    assert (answer.outcome, answer.ends, answer.status) == ("shed", 1, grpc.StatusCode.RESOURCE_EXHAUSTED)


@pytest.mark.parametrize("n", [0, -1, MAX_CHOICES + 1])
async def test_a_number_of_choices_beyond_the_limit_is_refused_by_name(nats_url: str, n: int) -> None:
    async with gateway(nats_url) as running:
        answer = await generate(running.stub, wanted(n))
    assert answer.status is grpc.StatusCode.INVALID_ARGUMENT
    assert answer.details == f"gateway: n is {n}: send an integer from 1 to {MAX_CHOICES}"


def read_blocking(address: str) -> list[str]:
    with Client(address) as client, client.generate("hello", n=2, seed=0) as stream:
        texts = stream.texts()
        assert [prompt.seed for prompt in stream.prompts] == [0, 1]
        assert [end.usage.completion_tokens for end in stream.ends] == [2, 1]
    return texts


async def read_async(address: str) -> list[str]:
    async with AsyncClient(address) as client, client.generate("hello", n=2, seed=0) as stream:
        texts = await stream.texts()
        assert [prompt.seed for prompt in stream.prompts] == [0, 1]
        assert [end.usage.completion_tokens for end in stream.ends] == [2, 1]
    return texts


@pytest.mark.thorough(but="True")
@pytest.mark.parametrize("blocking", [True, False])
async def test_the_python_client_tells_choices_apart(nats_url: str, blocking: bool) -> None:
    async with serving(nats_url) as (peers, running):
        address = running.server.address
        reading = asyncio.ensure_future(
            asyncio.to_thread(read_blocking, address) if blocking else read_async(address)
        )
        (first, _), (second, _) = await placed(peers, 2)
        await peers.text(first, 5, "a")
        await peers.text(second, 5, "x", finish="stop")
        await peers.text(first, 6, "b", finish="stop")
        assert await reading == ["ab", "x"]


async def test_the_python_client_raises_what_one_choice_failed_with(nats_url: str) -> None:
    async def read(address: str) -> None:
        async with AsyncClient(address) as client, client.generate("hello", n=2, seed=0) as stream:
            await stream.texts()

    async with serving(nats_url) as (peers, running):
        reading = asyncio.create_task(read(running.server.address))
        (first, _), _ = await placed(peers, 2)
        await peers.text(first, 5, "a")
        await peers.lost(first, 1, "invalid_request")
        with pytest.raises(InvalidRequest, match="it cannot go on"):
            await reading
