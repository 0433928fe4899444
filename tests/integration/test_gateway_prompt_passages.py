"""Passages on their way into a prompt: a real tokenizer chooses, the client is told what became of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.retrieval_use import BEST_FIRST, SHARED_PREFIX
from services.tokenizer.prompt_tokenizer import PromptTokenizer
from shared.blocks.block_hash import BlockHasher
from shared.errors import InvalidRequest, PenstockError
from shared.messages import (
    NO_ADAPTER,
    AdapterId,
    AdapterReport,
    KeepResponse,
    LookUpResponse,
    Message,
    Prefill,
    ResponseMissing,
    Retrieve,
    Retrieved,
    ScoredPassage,
    Tokenize,
    unpack_ids,
)
from tests.integration.gateway_peers import (
    MODEL,
    Answer,
    Fleet,
    Running,
    ask,
    default_answer,
    fleet,
    gateway,
)
from tests.support.client import Answer as Answered
from tests.support.client import generate
from tests.support.tokenizer_kinds import text_tokenizer
from tests.support.wait import until

ROLES = ("tokenizer", "prefill", "decode", "detokenizer", "retriever")
CONTEXT_TOKENS = 700
RIVER = ScoredPassage("rivers.md § Flow", "Water flows downhill.", 0.9, start=80, end=101)
SOURCE = ScoredPassage("rivers.md § Source", "A river begins at its source.", 0.8, start=10, end=39)
LAKE = ScoredPassage("lakes.md", "A lake lies still. " * 20, 0.7, start=5, end=380)
FOUND = (RIVER, LAKE, SOURCE)


def tokenizer_answer(message: Message) -> Answer:
    if not isinstance(message, Tokenize):
        return default_answer(message)
    try:
        return PromptTokenizer(text_tokenizer("byte_level"), BlockHasher(), 4 << 20).tokenize_prompt(message)
    except PenstockError as error:
        return error


def retriever_answer(message: Message) -> Answer:
    if isinstance(message, LookUpResponse):
        return ResponseMissing("g")
    return Retrieved(FOUND, "", 1, 1) if isinstance(message, Retrieve) else default_answer(message)


@asynccontextmanager
async def serving(nats_url: str, **options: object) -> AsyncIterator[tuple[Fleet, Running]]:
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url, **options) as running:
        peers["tokenizer-0"].answers = tokenizer_answer
        peers["retriever-0"].answers = retriever_answer
        for role in ("prefill", "decode"):
            peers[f"{role}-0"].say(context_tokens=CONTEXT_TOKENS)
        for role in ROLES:
            await running.knows(role, 1)
        await until(
            lambda: all(context_of(running, role) == CONTEXT_TOKENS for role in ("prefill", "decode"))
        )
        yield peers, running


def context_of(running: Running, role: str) -> int:
    (view,) = running.fleet.instances(role)
    return view.heartbeat.context_tokens


def question(text: str = "what flows?", *, max_tokens: int = 16, **retrieval: object) -> pb.GenerateRequest:
    message = ask(text, max_tokens=max_tokens, temperature=0.0)
    message.retrieval.CopyFrom(pb.Retrieval(enabled=True, **retrieval))  # type: ignore[arg-type]  # its fields
    return message


async def answered(peers: Fleet, running: Running, message: pb.GenerateRequest) -> tuple[Answered, str]:
    """With one token, and the prompt that was computed, as text."""
    call = asyncio.create_task(generate(running.stub, message))
    envelope, prefill = await peers.placed()
    await peers.text(envelope.request_id, prefill.prompt_len, "a", finish="stop")
    return await call, text_tokenizer("byte_level").decode(unpack_ids(prefill.token_ids))


def places(answer: Answered) -> list[tuple[str, int]]:
    assert answer.prompt is not None
    return [(passage.source, passage.prompt_place) for passage in answer.prompt.passages]


def line(place: int, passage: ScoredPassage) -> str:
    return f"[{place}] {passage.text.strip()}\n"


async def test_by_default_passages_stand_by_document_and_place_and_are_told_best_first(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        answer, prompt = await answered(peers, running, question())
    assert line(1, LAKE) + line(2, SOURCE) + line(3, RIVER) in prompt
    assert places(answer) == [(RIVER.source, 3), (LAKE.source, 1), (SOURCE.source, 2)]
    assert answer.prompt is not None
    assert answer.prompt.warning == ""


@pytest.mark.thorough(but="best_first-0")
@pytest.mark.parametrize(("usual", "asked"), [(BEST_FIRST, 0), (SHARED_PREFIX, pb.PASSAGE_ORDER_BEST_FIRST)])
async def test_they_stand_best_first_where_the_server_or_the_request_says_so(
    nats_url: str, usual: str, asked: int
) -> None:
    async with serving(nats_url, passage_order=usual) as (peers, running):
        answer, prompt = await answered(peers, running, question(order=asked))
    assert line(1, RIVER) + line(2, LAKE) + line(3, SOURCE) in prompt
    assert [place for _, place in places(answer)] == [1, 2, 3]


@pytest.mark.parametrize(("least_share", "standing"), [(0.79, [2, 0, 1]), (0.77, [3, 1, 2])])
async def test_a_passage_far_below_the_best_one_is_told_and_stands_not_in_the_prompt(
    nats_url: str, least_share: float, standing: list[int]
) -> None:
    async with serving(nats_url, passage_least_share=least_share) as (peers, running):
        answer, prompt = await answered(peers, running, question())
    assert places(answer) == list(zip((RIVER.source, LAKE.source, SOURCE.source), standing, strict=True))
    assert ("A lake lies still." in prompt) == bool(standing[1])
    assert answer.prompt is not None
    assert answer.prompt.warning == ""


async def test_a_passage_that_the_clients_limit_leaves_out_is_named_and_warned_of(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        answer, prompt = await answered(peers, running, question())
        limited, shorter = await answered_again(peers, running, limited_question())
    assert [place for _, place in places(answer)] == [3, 1, 2]
    assert places(limited) == [(RIVER.source, 2), (LAKE.source, 0), (SOURCE.source, 1)]
    assert "A lake lies still." in prompt
    assert "A lake lies still." not in shorter
    assert limited.prompt is not None
    assert (
        limited.prompt.warning == "the prompt had no room for 1 of 3 passages (retrieval.max_tokens is 100)"
    )


def limited_question() -> pb.GenerateRequest:
    message = question()
    message.retrieval.max_tokens = 100
    return message


async def answered_again(peers: Fleet, running: Running, message: pb.GenerateRequest) -> tuple[Answered, str]:
    for peer in peers.peers.values():
        peer.got.clear()
    return await answered(peers, running, message)


async def test_passages_leave_room_for_the_answer(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        whole, _ = await answered(peers, running, question(max_tokens=1))
        assert whole.prompt is not None
        left = CONTEXT_TOKENS - whole.prompt.prompt_tokens
        exact, _ = await answered_again(peers, running, question(max_tokens=left))
        longer, _ = await answered_again(peers, running, question(max_tokens=left + 1))
    assert 1 < left < CONTEXT_TOKENS // 4
    assert 0 not in [place for _, place in places(exact)]
    assert 0 in [place for _, place in places(longer)]
    assert longer.prompt is not None
    assert longer.prompt.warning.startswith("the prompt had no room for ")


async def test_a_prompt_without_room_is_answered_without_passages_and_without_their_adapter(
    nats_url: str,
) -> None:
    sql = AdapterId("sql", "d1")
    reports = (AdapterReport(sql.name, 1, sql.digest, 8),)
    message = question()
    message.retrieval.max_tokens = 1
    async with serving(nats_url, retrieval_adapter=sql.name) as (peers, running):
        for role in ("prefill", "decode"):
            peers[f"{role}-0"].say(adapters=reports)
        await until(
            lambda: all(
                running.fleet.instances(role)[0].heartbeat.worker.adapters == reports
                for role in ("prefill", "decode")
            )
        )
        answer, prompt = await answered(peers, running, message)
        ((_, prefill),) = peers["prefill-0"].of(Prefill)
        asked = [tokenize for _, tokenize in peers["tokenizer-0"].of(Tokenize)]
    assert isinstance(prefill, Prefill)
    assert (prefill.adapter, prompt) == (NO_ADAPTER, "what flows?")
    assert [tokenize.adapter for tokenize in asked if isinstance(tokenize, Tokenize)] == [sql.digest, ""]
    assert answer.prompt is not None
    assert answer.prompt.model == MODEL
    assert answer.prompt.warning.startswith("the prompt had no room for 3 of 3 passages")
    assert [place for _, place in places(answer)] == [0, 0, 0]


async def test_where_it_may_not_degrade_a_prompt_without_room_for_any_passage_is_refused(
    nats_url: str,
) -> None:
    message = question(may_degrade=False)
    message.retrieval.max_tokens = 1
    async with serving(nats_url) as (peers, running):
        answer = await generate(running.stub, message)
        assert not peers["prefill-0"].of(Prefill)
    assert (answer.outcome, answer.status) == ("failed", grpc.StatusCode.INVALID_ARGUMENT)
    assert "no room for any of its passages" in answer.details


async def test_where_it_may_not_degrade_one_passage_is_enough(nats_url: str) -> None:
    message = question(may_degrade=False)
    message.retrieval.max_tokens = 100
    async with serving(nats_url) as (peers, running):
        answer, _ = await answered(peers, running, message)
    assert places(answer)[1] == (LAKE.source, 0)


async def test_a_prompt_too_long_by_itself_is_refused_as_such(nats_url: str) -> None:
    async with serving(nats_url) as (_, running):
        answer = await generate(running.stub, question("why? " * CONTEXT_TOKENS, may_degrade=False))
    assert answer.status == grpc.StatusCode.INVALID_ARGUMENT
    assert "maximum context length" in answer.details


async def test_what_one_message_does_not_carry_beside_the_prompt_stays_behind(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        peers["tokenizer-0"].answers = lambda _: InvalidRequest("enough seen")
        most_bytes = running.registry.prompt_limits.max_text_bytes
        message = question("é" * ((most_bytes - len(RIVER.text) - 1) // 2))
        await generate(running.stub, message)
        ((_, tokenize),) = peers["tokenizer-0"].of(Tokenize)
    assert isinstance(tokenize, Tokenize)
    assert tokenize.passages == (RIVER.text,)


async def test_a_tokenizer_that_loses_count_of_the_passages_fails_the_request(nats_url: str) -> None:
    def answers(message: Message) -> Answer:
        if isinstance(message, Tokenize):
            whole = tokenizer_answer(message)
            return replace(whole, passage_places=(1, 2))  # type: ignore[type-var]  # a Tokenized
        return default_answer(message)

    async with serving(nats_url) as (peers, running):
        peers["tokenizer-0"].answers = answers
        answer = await generate(running.stub, question())
    assert (answer.outcome, answer.status) == ("failed", grpc.StatusCode.INTERNAL)


async def test_a_kept_answer_keeps_where_its_passages_stood(nats_url: str) -> None:
    message = question()
    message.cache.mode = pb.CACHE_MODE_EXACT
    async with serving(nats_url) as (peers, running):
        await answered(peers, running, message)
        await until(lambda: peers["retriever-0"].of(KeepResponse))
        ((_, keep),) = peers["retriever-0"].of(KeepResponse)
    assert isinstance(keep, KeepResponse)
    assert keep.response.prompt_places == (3, 1, 2)


async def test_an_answer_from_fewer_passages_than_found_is_not_kept(nats_url: str) -> None:
    message = limited_question()
    message.cache.mode = pb.CACHE_MODE_EXACT
    async with serving(nats_url) as (peers, running):
        await answered(peers, running, message)
        assert peers["retriever-0"].of(LookUpResponse)
        message.retrieval.max_tokens = 1000
        await answered_again(peers, running, message)
        await until(lambda: peers["retriever-0"].of(KeepResponse))
        kept = peers["retriever-0"].of(KeepResponse)
    assert [len(keep.response.prompt_places) for _, keep in kept if isinstance(keep, KeepResponse)] == [3]
