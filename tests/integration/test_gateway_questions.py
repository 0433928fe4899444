"""What a gateway searches for on behalf of a request, what its client hears of that, and from whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.question.searched_question import TOO_LONG
from shared.messages import MAX_QUERY_CHARS, Message, Retrieve, Retrieved, ScoredPassage
from tests.integration.gateway_peers import Answer as PeerAnswer
from tests.integration.gateway_peers import Fleet, Running, ask, default_answer, fleet, gateway
from tests.support.client import Answer, generate
from tests.support.wait import until

ROLES = ("tokenizer", "prefill", "decode", "detokenizer", "retriever")
PASSAGE = ScoredPassage("doc.md", "Water flows.", 0.5)


def finding(message: Message) -> PeerAnswer:
    if isinstance(message, Retrieve):
        return Retrieved((PASSAGE,), "", 1, 1, warning="from the retriever")
    return default_answer(message)


def silent(message: Message) -> PeerAnswer:
    return None if isinstance(message, Retrieve) else default_answer(message)


@asynccontextmanager
async def serving(
    nats_url: str, *, retrievers: int = 1, **options: object
) -> AsyncIterator[tuple[Fleet, Running]]:
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url, **options) as running:
        for number in range(1, retrievers):
            await peers.add("retriever", number)
        for number in range(retrievers):
            peers[f"retriever-{number}"].answers = finding
        for role in ROLES:
            await running.knows(role, retrievers if role == "retriever" else 1)
        yield peers, running


def chat(*turns: tuple[str, str]) -> pb.GenerateRequest:
    messages = [pb.ChatMessage(role=role, content=content) for role, content in turns]
    message = pb.GenerateRequest(chat=pb.ChatPrompt(messages=messages))
    message.retrieval.enabled = True
    return message


FOLLOW_UP = (("user", "Where is Oslo?"), ("assistant", "In Norway."), ("user", "How big is it?"))


async def answered(peers: Fleet, running: Running, message: pb.GenerateRequest) -> Answer:
    call = asyncio.create_task(generate(running.stub, message))
    envelope, prefill = await peers.placed()
    await peers.text(envelope.request_id, len(prefill.token_ids) // 4, "a", finish="stop")
    return await call


def asked(peers: Fleet, number: int = 0) -> list[str]:
    found = peers[f"retriever-{number}"].of(Retrieve)
    return [message.query for _, message in found if isinstance(message, Retrieve)]


async def test_a_follow_up_is_searched_for_with_what_it_leans_on_and_its_client_is_told(
    nats_url: str,
) -> None:
    async with serving(nats_url) as (peers, running):
        answer = await answered(peers, running, chat(*FOLLOW_UP))
        assert asked(peers) == ["Where is Oslo? How big is it?"]
    assert answer.prompt is not None
    assert answer.prompt.retrieval_query == "Where is Oslo? How big is it?"


async def test_a_question_that_is_searched_for_as_it_is_is_not_repeated(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        answer = await answered(peers, running, chat(("user", "Where is Oslo?")))
    assert answer.prompt is not None
    assert (answer.prompt.retrieval_query, answer.prompt.warning) == ("", "from the retriever")


async def test_over_http_what_was_searched_for_stands_under_penstock(nats_url: str) -> None:
    body = {
        "messages": [{"role": role, "content": content} for role, content in FOLLOW_UP],
        "penstock": {"retrieval": True},
    }
    async with serving(nats_url) as (peers, running), aiohttp.ClientSession() as web:
        call = asyncio.create_task(web.post(f"http://{running.http.address}/v1/chat/completions", json=body))
        envelope, prefill = await peers.placed()
        await peers.text(envelope.request_id, len(prefill.token_ids) // 4, "a", finish="stop")
        async with await call as response:
            (request,) = (await response.json())["penstock"]["requests"]
    assert request["retrieval_query"] == "Where is Oslo? How big is it?"


async def test_the_client_s_own_query_is_searched_for_and_told(nats_url: str) -> None:
    message = chat(*FOLLOW_UP)
    message.retrieval.query = "area of Oslo"
    async with serving(nats_url) as (peers, running):
        answer = await answered(peers, running, message)
        assert asked(peers) == ["area of Oslo"]
    assert answer.prompt is not None
    assert answer.prompt.retrieval_query == "area of Oslo"


@pytest.mark.thorough(but="True")
@pytest.mark.parametrize("may_degrade", [True, False])
async def test_a_question_that_is_too_long_is_searched_for_by_its_beginning_with_a_warning(
    nats_url: str, may_degrade: bool
) -> None:
    message = ask("q" * (MAX_QUERY_CHARS + 1))
    message.retrieval.enabled, message.retrieval.may_degrade = True, may_degrade
    async with serving(nats_url) as (peers, running):
        answer = await answered(peers, running, message)
        assert asked(peers) == ["q" * MAX_QUERY_CHARS]
    assert answer.prompt is not None
    assert answer.prompt.warning == f"{TOO_LONG}; from the retriever"
    assert (answer.prompt.retrieval_query, len(answer.prompt.passages)) == ("", 1)


async def test_a_silent_retriever_leaves_time_for_the_next_one_within_the_share(nats_url: str) -> None:
    async with serving(nats_url, retrievers=2, retrieve_share=0.05) as (peers, running):
        first, second = "retriever-0", "retriever-1"
        peers[first].answers = peers[second].answers = silent
        message = ask("Where is Oslo?")
        message.retrieval.enabled, message.ttft_deadline_ms = True, 20_000
        call = asyncio.create_task(generate(running.stub, message))
        # Whoever is asked first says nothing; the other one answers.
        quiet = await until(lambda: next((name for name in (first, second) if peers[name].of(Retrieve)), ""))
        other = second if quiet == first else first
        peers[other].answers = finding
        envelope, prefill = await peers.placed()
        await peers.text(envelope.request_id, len(prefill.token_ids) // 4, "a", finish="stop")
        answer = await call
        deadlines = {peers[name].of(Retrieve)[0][0].deadline_us for name in (first, second)}
    assert answer.prompt is not None
    assert ([each.source for each in answer.prompt.passages], answer.prompt.degraded) == (["doc.md"], "")
    # Both work until the end of the one share, which nobody's silence has moved.
    assert max(deadlines) - min(deadlines) < 1000


async def test_when_all_are_silent_the_request_goes_on_without_passages_after_its_share(
    nats_url: str,
) -> None:
    async with serving(nats_url, retrievers=2, retrieve_share=0.1) as (peers, running):
        peers["retriever-0"].answers = peers["retriever-1"].answers = silent
        message = ask("Where is Oslo?")
        message.retrieval.enabled, message.ttft_deadline_ms = True, 20_000
        answer = await answered(peers, running, message)
        assert [len(asked(peers, number)) for number in (0, 1)] == [1, 1]
    assert answer.prompt is not None
    assert answer.prompt.degraded == "retrieval"
    assert answer.end is not None
    (retrieving_us,) = [phase.duration_us for phase in answer.end.timeline.phases if phase.name == "retrieve"]
    assert (
        retrieving_us >= 1_800_000
    )  # the share of what is left, since nobody can know that the last one is silent
