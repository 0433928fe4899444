"""What a gateway counts of its requests, by model."""

from __future__ import annotations

import asyncio

import pytest

from shared.messages import Tokenize, Tokenized
from tests.integration.gateway_peers import MODEL, Running, ask, fleet, gateway
from tests.support.client import generate
from tests.support.metric import value
from tests.support.wait import until

ROLES = ("tokenizer", "prefill", "decode", "detokenizer")
FINISHED = "penstock_finished_requests_total"


def tokens() -> tuple[float, float]:
    """Of prompts, and generated ones."""
    names = ("penstock_prompt_tokens_total", "penstock_generation_tokens_total")
    prompt, generated = (value(name, model=MODEL) for name in names)
    return prompt, generated


def live(running: Running, model: str = MODEL) -> tuple[float, float]:
    """Running and waiting requests, as the next heartbeat would show them."""
    running.registry.status()
    return value("penstock_requests_running", model=model), value("penstock_requests_waiting", model=model)


async def test_the_tokens_of_a_prompt_count_with_its_first_token_and_the_others_as_they_come(
    nats_url: str,
) -> None:
    before = tokens()

    def grown() -> tuple[float, float]:
        return tokens()[0] - before[0], tokens()[1] - before[1]

    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        for role in ROLES:
            await running.knows(role, 1)
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        assert grown() == (0, 0)
        await peers.text(envelope.request_id, 5, "ab")
        await until(lambda: grown() == (5, 2))
        await peers.text(envelope.request_id, 7, "c", finish="length")
        await call
    assert grown() == (5, 3)


@pytest.mark.thorough(but="stop_string-stop")
@pytest.mark.parametrize(
    ("finish", "reason"), [("stop", "stop"), ("stop_string", "stop"), ("length", "length")]
)
async def test_an_answer_is_counted_by_why_it_ended(nats_url: str, finish: str, reason: str) -> None:
    before = value(FINISHED, model=MODEL, finish_reason=reason)
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a", finish=finish)
        await call
        await until(lambda: value(FINISHED, model=MODEL, finish_reason=reason) == before + 1)


async def test_a_request_waits_until_workers_have_it_and_runs_until_it_ends(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        for role in ROLES:
            await running.knows(role, 1)
        answers, peers["tokenizer-0"].answers = peers["tokenizer-0"].answers, lambda _: None
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        await until(lambda: peers["tokenizer-0"].of(Tokenize))
        assert live(running) == (0, 1)
        ((asked, message),) = peers["tokenizer-0"].of(Tokenize)
        answer = answers(message)
        assert isinstance(answer, Tokenized)
        await peers.bus.reply(asked, answer)
        envelope, _ = await peers.placed()
        await until(lambda: live(running) == (1, 0))  # before the first token too
        await peers.text(envelope.request_id, 5, "a")
        await peers.text(envelope.request_id, 6, "b", finish="length")
        await call
        await until(lambda: live(running) == (0, 0))


async def test_a_request_whose_model_is_not_known_yet_waits_without_one(nats_url: str) -> None:
    async with gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        await until(lambda: live(running, model="") == (0, 1))
        call.cancel()
        await until(lambda: live(running, model="") == (0, 0))


async def test_latencies_are_those_of_the_model(nats_url: str) -> None:
    names = [f"penstock_{name}_seconds_count" for name in ("time_to_first_token", "e2e_request_latency")]
    before = [value(name, model=MODEL, prompt_tokens="00016") for name in names]
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        await call
        wanted = [count + 1 for count in before]
        await until(lambda: [value(name, model=MODEL, prompt_tokens="00016") for name in names] == wanted)
