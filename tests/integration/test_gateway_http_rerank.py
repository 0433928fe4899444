"""Reranking over HTTP, as clients of Cohere, Jina and text-embeddings-inference ask for it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from services.gateway.asks.passage_asks import MAX_RANKED_TEXTS
from shared.messages import MAX_EMBED_TEXT_BYTES, MAX_QUERY_CHARS, Message, RerankTexts, TextScores
from tests.integration.gateway_peers import Answer, Fleet
from tests.integration.test_gateway_rerank import RERANKER, parts, reranking
from tests.support.http import Reply, call, http_client

PATHS = ("/v1/rerank", "/v2/rerank", "/rerank")
COHERE = {"query": "q", "documents": ["bb", "a", "dddd"]}
TEI = {"query": "q", "texts": ["bb", "a", "dddd"]}


def logits(message: Message) -> Answer:
    """Half of a text's length less one; one of more than 900 characters is cut, and each is of two tokens."""
    assert isinstance(message, RerankTexts)
    lengths = [len(text) for text in message.texts]
    cut = tuple(length > 900 for length in lengths)
    return TextScores(tuple(length / 2 - 1 for length in lengths), (2,) * len(lengths), cut)


@asynccontextmanager
async def edge(nats_url: str, **options: Any) -> AsyncIterator[tuple[Fleet, aiohttp.ClientSession]]:
    async with (
        reranking(nats_url, logits, **options) as (peers, running),
        http_client(running.http.address) as client,
    ):
        yield peers, client


async def post(nats_url: str, body: dict[str, Any], path: str = "/v1/rerank") -> Reply:
    async with edge(nats_url) as (_, client):
        return await call(client, path, body)


def logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value))


@pytest.mark.thorough(but="/v2/rerank-2 | /v1/rerank-1")
@pytest.mark.parametrize(("path", "version"), [("/v1/rerank", "1"), ("/v2/rerank", "2"), ("/rerank", "1")])
async def test_documents_get_what_cohere_and_jina_answer(nats_url: str, path: str, version: str) -> None:
    reply = await post(nats_url, {**COHERE, "model": RERANKER}, path)
    assert reply.status == 200
    assert [result["index"] for result in reply.body["results"]] == [2, 0, 1]
    scores = [result["relevance_score"] for result in reply.body["results"]]
    assert scores == pytest.approx([logistic(1.0), logistic(0.0), logistic(-0.5)])
    assert all(set(result) == {"index", "relevance_score"} for result in reply.body["results"])
    assert (reply.body["model"], reply.body["usage"]["total_tokens"]) == (RERANKER, 6)
    assert reply.body["meta"] == {
        "api_version": {"version": version},
        "tokens": {"input_tokens": 6, "output_tokens": 0},
    }
    assert "penstock" not in reply.body


async def test_documents_that_are_objects_are_read_and_come_back_where_they_are_wanted(nats_url: str) -> None:
    documents = [{"text": "bb", "title": "B"}, "a", {"text": "dddd"}]
    body = {
        "query": "q",
        "documents": documents,
        "return_documents": True,
        "top_n": 2,
        "rank_fields": ["text"],
    }
    async with edge(nats_url) as (peers, client):
        reply = await call(client, "/v1/rerank", body)
        assert parts(peers) == [RerankTexts("q", ("bb", "a", "dddd"))]
    assert [result["document"] for result in reply.body["results"]] == [{"text": "dddd"}, {"text": "bb"}]


@pytest.mark.thorough(but="/rerank")
@pytest.mark.parametrize("path", PATHS)
async def test_texts_get_the_bare_list_of_text_embeddings_inference(nats_url: str, path: str) -> None:
    reply = await post(nats_url, TEI, path)
    assert [row["index"] for row in reply.body] == [2, 0, 1]
    assert [row["score"] for row in reply.body] == pytest.approx(
        [logistic(1.0), logistic(0.0), logistic(-0.5)]
    )
    assert all(set(row) == {"index", "score"} for row in reply.body)


async def test_raw_scores_and_texts_come_where_they_are_wanted(nats_url: str) -> None:
    reply = await post(nats_url, {**TEI, "raw_scores": True, "return_text": True}, "/rerank")
    assert reply.body == [
        {"index": 2, "score": 1.0, "text": "dddd"},
        {"index": 0, "score": 0.0, "text": "bb"},
        {"index": 1, "score": -0.5, "text": "a"},
    ]


LONG = {"query": "q", "documents": ["a", "b" * 901]}


async def test_documents_that_were_cut_are_told(nats_url: str) -> None:
    reply = await post(nats_url, {**LONG, "truncate": True})
    assert reply.body["penstock"] == {"truncated": [1]}
    (warning,) = reply.body["meta"]["warnings"]
    assert "the first of them texts[1]" in warning


async def test_who_wants_no_text_cut_is_refused_where_one_was(nats_url: str) -> None:
    async with edge(nats_url) as (_, client):
        cut = await call(client, "/rerank", {**LONG, "truncate": False})
        whole = await call(client, "/rerank", {**TEI, "truncate": False, "truncation_direction": "Right"})
    assert (cut.status, cut.error["code"], whole.status) == (413, "too_large", 200)


async def test_scores_far_apart_stay_within_0_and_1(nats_url: str) -> None:
    reply = await post(nats_url, {"query": "q", "documents": ["a", "b" * 4000]})
    best, worst = (result["relevance_score"] for result in reply.body["results"])
    assert best == 1.0
    assert 0.0 < worst < 0.5


async def test_the_most_that_may_be_asked_for_is_taken(nats_url: str) -> None:
    documents = ["a"] * (MAX_RANKED_TEXTS - 1) + ["b" * MAX_EMBED_TEXT_BYTES]
    reply = await post(nats_url, {"query": "q" * MAX_QUERY_CHARS, "documents": documents})
    assert reply.body["results"][0]["index"] == MAX_RANKED_TEXTS - 1
    assert len(reply.body["results"]) == MAX_RANKED_TEXTS


WRONG: dict[str, tuple[dict[str, Any], int, str]] = {
    "no query": ({"documents": ["a"]}, 400, "query"),
    "blank query": ({**COHERE, "query": " "}, 400, "query"),
    "long query": ({**COHERE, "query": "q" * (MAX_QUERY_CHARS + 1)}, 413, "query"),
    "nothing to rank": ({"query": "q"}, 400, "documents"),
    "both": ({**COHERE, **TEI}, 400, "documents"),
    "no documents": ({"query": "q", "documents": []}, 400, "documents"),
    "many documents": ({"query": "q", "documents": ["a"] * (MAX_RANKED_TEXTS + 1)}, 400, "documents"),
    "many texts": ({"query": "q", "texts": ["a"] * (MAX_RANKED_TEXTS + 1)}, 400, "texts"),
    "a number": ({"query": "q", "documents": ["a", 5]}, 400, "documents[1]"),
    "an object without text": ({"query": "q", "documents": [{"title": "a"}]}, 400, "documents[0]"),
    "blank document": ({"query": "q", "documents": ["a", " "]}, 400, "documents[1]"),
    "blank text": ({"query": "q", "texts": ["a", " "]}, 400, "texts[1]"),
    "long document": ({"query": "q", "documents": ["a" * (MAX_EMBED_TEXT_BYTES + 1)]}, 413, "documents[0]"),
    "long text": ({"query": "q", "texts": ["a" * (MAX_EMBED_TEXT_BYTES + 1)]}, 413, "texts[0]"),
    "top_n of 0": ({**COHERE, "top_n": 0}, 400, "top_n"),
    "other fields": ({**COHERE, "rank_fields": ["text", "title"]}, 400, "rank_fields"),
    "from the left": ({**TEI, "truncation_direction": "Left"}, 400, "truncation_direction"),
    "no flag": ({**COHERE, "return_documents": "yes"}, 400, "return_documents"),
    "model": ({**COHERE, "model": "other"}, 404, "model"),
    "deadline": ({**COHERE, "penstock": {"deadline_ms": 0}}, 400, "penstock.deadline_ms"),
}


@pytest.mark.thorough(but="blank query | long document | many documents | top_n of 0 | both")
@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_field_is_named(nats_url: str, name: str) -> None:
    body, status, param = WRONG[name]
    reply = await post(nats_url, body)
    assert (reply.status, reply.error["param"]) == (status, param)


async def test_without_a_reranker_it_is_a_404_that_says_what_to_set(nats_url: str) -> None:
    async with edge(nats_url, rerankers=("",)) as (_, client):
        reply = await call(client, "/v1/rerank", COHERE)
    assert reply.status == 404
    assert "set reranker" in reply.error["message"]
