"""Log-probabilities of a prompt on their way from prefill to the client: whole, in order, before the text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from penstock.client import AsyncClient
from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.scope import prompt_logprobs_buffer
from shared.bus.subjects import inbox
from shared.messages import Envelope, Prefill, PromptLogprobs, Reserve, pack_hashes
from shared.sampling.parameters import NO_LOGPROBS, TokenLogprob
from tests.integration.gateway_peers import GATEWAY, Fleet, Running, ask, fleet, gateway
from tests.support.block_hashes import hashes_of
from tests.support.client import Answer, generate
from tests.support.metric import value
from tests.support.wait import until

HELLO = "hello"


@asynccontextmanager
async def serving(nats_url: str, **options: object) -> AsyncIterator[tuple[Fleet, Running]]:
    async with fleet(nats_url) as peers, gateway(nats_url, **options) as running:
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        yield peers, running


def scored(*positions: int) -> tuple[TokenLogprob, ...]:
    """Of the prompt's tokens at these positions."""
    return tuple(TokenLogprob(ord(HELLO[place]), -float(place), ((ord("x"), -0.25),)) for place in positions)


async def tell(peers: Fleet, envelope: Envelope, *positions: int, epoch: int = 1) -> None:
    await peers.bus.publish(
        inbox("gateway", GATEWAY),
        PromptLogprobs(positions[0], scored(*positions)),
        peers.bus.envelope(envelope.request_id, epoch),
    )


async def read(running: Running, message: pb.GenerateRequest) -> tuple[list[pb.Logprob], Answer]:
    """The prompt's log-probabilities, which come in order and before any text, and all of the answer."""
    answer = await generate(running.stub, message)
    return answer.prompt_logprobs, answer


def check(told: Sequence[pb.Logprob]) -> None:
    """Whole and once; nothing comes before the first token."""
    assert [each.token_id for each in told] == [ord(letter) for letter in HELLO]
    assert [each.logprob for each in told] == [0.0, -1.0, -2.0, -3.0, -4.0]
    assert [len(each.top) for each in told] == [0, 1, 1, 1, 1]


async def test_they_come_whole_and_in_order_between_the_prompt_and_its_text(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        reading = asyncio.create_task(read(running, ask(HELLO, prompt_logprobs=1)))
        envelope, prefill = await peers.placed()
        await tell(peers, envelope, 1, 2)
        await tell(peers, envelope, 3, 4)
        await peers.text(envelope.request_id, 5, "ab", finish="stop")
        told, answer = await reading
        ((_, reserve),) = peers["decode-0"].of(Reserve)
    check(told)
    assert answer.text == "ab"
    assert isinstance(reserve, Reserve)
    assert (prefill.sampling.prompt_logprobs, reserve.sampling.prompt_logprobs) == (1, NO_LOGPROBS)


async def test_the_python_client_has_them_with_the_first_delta(nats_url: str) -> None:
    async def read_stream(address: str) -> Sequence[Any]:
        async with AsyncClient(address) as client, client.generate(HELLO, prompt_logprobs=1) as stream:
            async for _ in stream:
                return list(stream.prompt_logprobs)
        return []

    async with serving(nats_url) as (peers, running):
        reading = asyncio.create_task(read_stream(running.server.address))
        envelope, _ = await peers.placed()
        await tell(peers, envelope, 1, 2, 3, 4)
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        check(await reading)


async def test_text_that_is_earlier_waits_for_them(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        reading = asyncio.create_task(read(running, ask(HELLO, prompt_logprobs=1)))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a")
        await tell(peers, envelope, 1, 2, 3)
        await peers.text(envelope.request_id, 6, "b", finish="stop")
        await tell(peers, envelope, 4)
        told, answer = await reading
    check(told)
    assert answer.text == "ab"


async def test_what_was_lost_is_told_by_another_placement_and_nothing_twice(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        reading = asyncio.create_task(read(running, ask(HELLO, prompt_logprobs=1)))
        envelope, _ = await peers.placed()
        await tell(peers, envelope, 1, 2)
        await tell(peers, envelope, 4)
        _, again = await peers.placed(epoch=2)
        assert again.sampling.prompt_logprobs == 1
        stale = value("penstock_stale_messages_total")
        await tell(peers, envelope, 3, 4)
        await until(lambda: value("penstock_stale_messages_total") == stale + 1)
        for positions in ((1,), (2, 3), (4,)):
            await tell(peers, envelope, *positions, epoch=2)
        await peers.text(envelope.request_id, 5, "ab", epoch=2, finish="stop")
        told, answer = await reading
    check(told)
    assert answer.end is not None
    assert (answer.text, answer.end.usage.replacements) == ("ab", 1)


async def test_a_placement_after_them_is_not_asked_for_them_again(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        reading = asyncio.create_task(read(running, ask(HELLO, prompt_logprobs=1)))
        envelope, _ = await peers.placed()
        await tell(peers, envelope, 1, 2, 3, 4)
        await peers.text(envelope.request_id, 5, "a")
        await peers.lost(envelope.request_id, 1)
        _, again = await peers.placed(epoch=2)
        await peers.text(envelope.request_id, 6, "b", epoch=2, finish="stop")
        told, answer = await reading
    check(told)
    assert again.sampling.prompt_logprobs == NO_LOGPROBS
    assert answer.text == "ab"


async def test_rows_that_wait_too_long_are_bounded_and_come_again(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_logprobs_buffer, "MAX_HELD_ROWS", 2)
    early = value("penstock_dropped_messages_total", reason="too_early")
    async with serving(nats_url) as (peers, running):
        reading = asyncio.create_task(read(running, ask(HELLO, prompt_logprobs=1)))
        envelope, _ = await peers.placed()
        for place, letter in enumerate("abc"):
            await peers.text(envelope.request_id, 5 + place, letter)
        await until(lambda: value("penstock_dropped_messages_total", reason="too_early") == early + 1)
        await tell(peers, envelope, 1, 2, 3, 4)
        await peers.text(envelope.request_id, 8, "d", finish="stop")
        _, again = await peers.placed(epoch=2)
        await peers.text(envelope.request_id, 7, "cd", epoch=2, finish="stop")
        told, answer = await reading
    check(told)
    assert isinstance(again, Prefill)
    assert answer.text == "abcd"


async def test_a_prompt_of_one_token_has_only_its_place(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        reading = asyncio.create_task(read(running, ask("h", prompt_logprobs=0)))
        envelope, prefill = await peers.placed()
        await peers.text(envelope.request_id, 1, "a", finish="stop")
        told, answer = await reading
    assert [(each.token_id, each.logprob) for each in told] == [(ord("h"), 0.0)]
    assert (answer.text, prefill.sampling.prompt_logprobs) == ("a", NO_LOGPROBS)


@pytest.mark.parametrize(("limit", "status"), [(15, "OK"), (14, "INVALID_ARGUMENT")])
async def test_more_of_them_than_a_gateway_keeps_are_refused(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, limit: int, status: str
) -> None:
    monkeypatch.setattr(prompt_logprobs_buffer, "MAX_PROMPT_LOGPROBS", limit)
    async with serving(nats_url) as (peers, running):
        calling = asyncio.create_task(generate(running.stub, ask("hel", prompt_logprobs=4)))
        if status == "OK":
            envelope, _ = await peers.placed()
            await tell(peers, envelope, 1, 2)
            await peers.text(envelope.request_id, 3, "a", finish="stop")
        answer = await calling
    assert answer.status is grpc.StatusCode[status]
    assert status == "OK" or "send at most 2" in answer.details


async def test_a_prompt_that_is_computed_for_them_is_not_expected_as_soon_as_a_cached_one(
    nats_url: str,
) -> None:
    prompt = "x" * 160
    names = pack_hashes(hashes_of([ord(letter) for letter in prompt], "", ""))

    def asked(**sampling: Any) -> pb.GenerateRequest:
        message = ask(prompt, **sampling)
        message.ttft_deadline_ms = 5000
        return message

    async with serving(nats_url) as (peers, running):
        peers["prefill-0"].say(added=names, prefix_event_id=1, best_tokens_per_s=4.0)
        await until(lambda: running.fleet.instances("prefill")[0].heartbeat.worker.best_tokens_per_s)
        late = await generate(running.stub, asked(prompt_logprobs=0))
        calling = asyncio.create_task(generate(running.stub, asked()))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 160, "a", finish="stop")
        answer = await calling
    assert (late.outcome, answer.outcome) == ("expired", "finished")
    assert "take about 40.0 s" in late.details
