"""Rerank of a real gateway, before scripted retrievers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.asks.passage_asks import MAX_RANKED_TEXTS
from shared.errors import InvalidRequest
from shared.files.api_key_file import KeyLimits, new_api_key
from shared.messages import (
    MAX_EMBED_TEXT_BYTES,
    MAX_QUERY_CHARS,
    MAX_RERANK_TEXTS,
    Cancel,
    Message,
    RerankTexts,
    TextScores,
)
from tests.integration.gateway_peers import Answer, Fleet, Running, default_answer, fleet, gateway
from tests.integration.test_gateway_text_asks import key_file, refused
from tests.support.wait import until

RERANKER = "rank-o-matic"


def scoring(message: Message) -> Answer:
    """The longer, the better; a text of more than 900 characters is cut, and each is read as one token."""
    if isinstance(message, RerankTexts):
        lengths = tuple(map(len, message.texts))
        cut = tuple(length > 900 for length in lengths)
        return TextScores(tuple(map(float, lengths)), (1,) * len(lengths), cut)
    return default_answer(message)


@asynccontextmanager
async def reranking(
    nats_url: str,
    answers: Callable[[Message], Answer] = scoring,
    *,
    rerankers: tuple[str, ...] = (RERANKER,),
    **options: object,
) -> AsyncIterator[tuple[Fleet, Running]]:
    """A retriever for each of the rerankers; "" is none."""
    async with fleet(nats_url, "tokenizer") as peers, gateway(nats_url, **options) as running:
        for number, reranker in enumerate(rerankers):
            (await peers.add("retriever", number, reranker=reranker)).answers = answers
        await running.knows("retriever", len(rerankers))
        await running.knows("tokenizer", 1)
        yield peers, running


def parts(peers: Fleet, instance: str = "retriever-0") -> list[RerankTexts]:
    return [part for _, part in peers[instance].of(RerankTexts) if isinstance(part, RerankTexts)]


def ranked(answer: pb.RerankResponse) -> list[tuple[int, float]]:
    return [(text.index, text.score) for text in answer.texts]


async def test_texts_come_in_the_order_in_which_they_answer(nats_url: str) -> None:
    async with reranking(nats_url) as (peers, running):
        answer = await running.stub.Rerank(pb.RerankRequest(query="q", texts=["bb", "a", "cc", "dddd"]))
        assert parts(peers) == [RerankTexts("q", ("bb", "a", "cc", "dddd"))]
    assert ranked(answer) == [(3, 4.0), (0, 2.0), (2, 2.0), (1, 1.0)]
    assert (answer.model, answer.tokens, answer.warning) == (RERANKER, 4, "")


@pytest.mark.thorough(but="1-1")
@pytest.mark.parametrize(("top_n", "count"), [(1, 1), (3, 3), (9, 3)])
async def test_only_the_best_come_where_no_more_are_wanted(nats_url: str, top_n: int, count: int) -> None:
    async with reranking(nats_url) as (_, running):
        answer = await running.stub.Rerank(pb.RerankRequest(query="q", texts=["a", "bb", "ccc"], top_n=top_n))
    assert [text.index for text in answer.texts] == [2, 1, 0][:count]


async def test_texts_that_were_cut_are_told(nats_url: str) -> None:
    async with reranking(nats_url) as (_, running):
        texts = ["a", "b" * 901, "c", "d" * 901]
        answer = await running.stub.Rerank(pb.RerankRequest(query="q", texts=texts))
    assert answer.warning.startswith("2 of the texts, the first of them texts[1]")


async def test_as_many_texts_as_may_be_are_scored_in_parts_beside_each_other(nats_url: str) -> None:
    texts = ["x" * (1 + number % 900) for number in range(MAX_RANKED_TEXTS - 1)] + [
        "y" * MAX_EMBED_TEXT_BYTES
    ]

    async with reranking(nats_url, lambda _: None, rerankers=(RERANKER,) * 2) as (peers, running):
        call = asyncio.ensure_future(
            running.stub.Rerank(pb.RerankRequest(query="q" * MAX_QUERY_CHARS, texts=texts))
        )
        await until(lambda: parts(peers, "retriever-0") and parts(peers, "retriever-1"))
        for peer in (peers["retriever-0"], peers["retriever-1"]):  # each has had one alone until here
            ((envelope, part),) = peer.of(RerankTexts)
            peer.answers = scoring
            answer = scoring(part)
            assert isinstance(answer, TextScores)
            await peer.bus.reply(envelope, answer)
        found = await call
        everything = [*parts(peers, "retriever-0"), *parts(peers, "retriever-1")]
    assert found.texts[0].index == MAX_RANKED_TEXTS - 1
    assert sorted(text.index for text in found.texts) == list(range(MAX_RANKED_TEXTS))
    assert [text.score for text in found.texts] == sorted(map(float, map(len, texts)), reverse=True)
    assert found.tokens == MAX_RANKED_TEXTS
    assert sum(len(part.texts) for part in everything) == MAX_RANKED_TEXTS
    assert max(len(part.texts) for part in everything) == MAX_RERANK_TEXTS


async def test_only_retrievers_with_that_reranker_are_asked(nats_url: str) -> None:
    async with reranking(nats_url, rerankers=("", "other", RERANKER)) as (peers, running):
        texts = ["a"] * (3 * MAX_RERANK_TEXTS)
        answer = await running.stub.Rerank(pb.RerankRequest(query="q", texts=texts, model=RERANKER))
        assert (parts(peers, "retriever-0"), parts(peers, "retriever-1")) == ([], [])
        assert len(parts(peers, "retriever-2")) == 3
    assert answer.model == RERANKER


async def test_of_several_rerankers_one_has_to_be_named(nats_url: str) -> None:
    async with reranking(nats_url, rerankers=("other", RERANKER)) as (_, running):
        unnamed = await refused(running.stub.Rerank(pb.RerankRequest(query="q", texts=["a"])))
        unknown = await refused(running.stub.Rerank(pb.RerankRequest(query="q", texts=["a"], model="x")))
    assert unnamed.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert unknown.code() is grpc.StatusCode.NOT_FOUND
    assert f"send one of other, {RERANKER}" in str(unknown.details())


async def test_without_a_reranker_the_client_hears_what_to_set(nats_url: str) -> None:
    async with reranking(nats_url, rerankers=("",)) as (_, running):
        error = await refused(running.stub.Rerank(pb.RerankRequest(query="q", texts=["a"])))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert "set reranker under [retriever]" in str(error.details())


async def test_without_a_retriever_the_client_hears_so_at_once(nats_url: str) -> None:
    async with gateway(nats_url, admit_wait_s=600.0) as running:
        error = await refused(running.stub.Rerank(pb.RerankRequest(query="q", texts=["a"])))
    assert error.code() is grpc.StatusCode.UNAVAILABLE


WRONG = {
    "no query": (pb.RerankRequest(texts=["a"]), "query is blank"),
    "long query": (
        pb.RerankRequest(query="q" * (MAX_QUERY_CHARS + 1), texts=["a"]),
        "query has 16385",
    ),
    "no texts": (pb.RerankRequest(query="q"), "texts has 0"),
    "many texts": (pb.RerankRequest(query="q", texts=["a"] * (MAX_RANKED_TEXTS + 1)), "send 1 to 1024"),
    "blank text": (pb.RerankRequest(query="q", texts=["a", "\t"]), "texts[1] is blank"),
    "long text": (
        pb.RerankRequest(query="q", texts=["a" * (MAX_EMBED_TEXT_BYTES + 1)]),
        "texts[0] has 16385",
    ),
    "top_n of 0": (pb.RerankRequest(query="q", texts=["a"], top_n=0), "top_n is 0: send at least 1"),
    "long model": (pb.RerankRequest(query="q", texts=["a"], model="m" * 257), "model has 257"),
}


@pytest.mark.thorough(but="long text | many texts | top_n of 0")
@pytest.mark.parametrize("name", WRONG)
async def test_what_cannot_be_ranked_is_refused_with_what_to_send(nats_url: str, name: str) -> None:
    request, pattern = WRONG[name]
    async with reranking(nats_url) as (peers, running):
        error = await refused(running.stub.Rerank(request))
        assert parts(peers) == []
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert pattern in str(error.details())


@pytest.mark.parametrize(
    "scores",
    [TextScores((1.0,), (1,), (False,)), TextScores((float("nan"), 1.0), (1, 1), (False, False))],
    ids=["too few", "not finite"],
)
async def test_scores_that_do_not_fit_the_texts_are_nobodys_order(nats_url: str, scores: TextScores) -> None:
    async with reranking(nats_url, lambda _: scores) as (_, running):
        error = await refused(running.stub.Rerank(pb.RerankRequest(query="q", texts=["a", "b"])))
    assert error.code() is grpc.StatusCode.INTERNAL


# ---- retrievers that fail, clients that go -----------------------------------------------------------------


async def test_a_part_whose_retriever_is_lost_is_asked_for_elsewhere(nats_url: str) -> None:
    async with reranking(nats_url, lambda _: None, rerankers=(RERANKER,) * 2) as (peers, running):
        peers["retriever-1"].answers = scoring
        texts = ["x" * (1 + number) for number in range(4 * MAX_RERANK_TEXTS)]
        call = asyncio.ensure_future(running.stub.Rerank(pb.RerankRequest(query="q", texts=texts)))
        await until(lambda: parts(peers))
        await peers["retriever-0"].stop()
        answer = await call
    assert [text.index for text in answer.texts] == list(reversed(range(len(texts))))


async def test_one_part_that_cannot_be_had_ends_all_and_the_others_are_cancelled(nats_url: str) -> None:
    async with reranking(nats_url, lambda _: None, rerankers=(RERANKER,) * 2) as (peers, running):
        peers["retriever-1"].answers = lambda _: InvalidRequest("what a text")
        texts = ["x"] * (2 * MAX_RERANK_TEXTS)
        error = await refused(running.stub.Rerank(pb.RerankRequest(query="q", texts=texts)))
        await until(lambda: peers["retriever-0"].of(Cancel))
        await running.text_calls.drain()  # nothing is live
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_client_that_goes_away_cancels_all_parts_that_are_asked_for(nats_url: str) -> None:
    async with reranking(nats_url, lambda _: None, rerankers=(RERANKER,) * 2) as (peers, running):
        texts = ["x"] * (4 * MAX_RERANK_TEXTS)
        call = asyncio.ensure_future(running.stub.Rerank(pb.RerankRequest(query="q", texts=texts)))
        both = ("retriever-0", "retriever-1")
        await until(lambda: all(parts(peers, name) for name in both))
        call.cancel()
        await until(lambda: all(peers[name].of(Cancel) for name in both))
        for name in both:
            ((asked, _),) = peers[name].of(RerankTexts)
            assert [envelope.request_id for envelope, _ in peers[name].of(Cancel)] == [asked.request_id]
        await running.text_calls.drain()  # nothing is live


async def test_what_was_read_counts_in_the_tokens_of_the_key(nats_url: str, tmp_path: Path) -> None:
    def greedy(message: Message) -> Answer:
        assert isinstance(message, RerankTexts)
        return TextScores((1.0,), (60,), (False,))

    key = new_api_key()
    keys = key_file(tmp_path, key, KeyLimits(tokens_per_min=100))
    metadata = (("authorization", f"Bearer {key}"),)
    request = pb.RerankRequest(query="q", texts=["x" * 60])  # guessed as 16 tokens, and 60 in truth
    async with reranking(nats_url, greedy, api_keys=keys) as (_, running):
        assert (await refused(running.stub.Rerank(request))).code() is grpc.StatusCode.UNAUTHENTICATED
        for _ in range(2):
            await running.stub.Rerank(request, metadata=metadata)
        error = await refused(running.stub.Rerank(request, metadata=metadata))
    assert "tokens_per_min" in str(error.details())


async def test_parts_take_no_room_from_other_calls(nats_url: str) -> None:
    async with reranking(nats_url, lambda _: None, rerankers=(RERANKER,) * 3, max_text_calls=2) as (
        peers,
        running,
    ):
        texts = ["x"] * (3 * MAX_RERANK_TEXTS)
        first = asyncio.ensure_future(running.stub.Rerank(pb.RerankRequest(query="q", texts=texts)))
        await until(lambda: all(parts(peers, f"retriever-{number}") for number in range(3)))
        assert (await running.stub.Tokenize(pb.TokenizeRequest(text="a"))).token_ids == [97]
        first.cancel()
