"""`/v1/vector_stores/{corpus}/search` before scripted retrievers, and as OpenAI's own client asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from services.gateway.asks.passage_asks import MAX_FOUND
from services.gateway.http.vector_store_pages import DEFAULT_RESULTS, MAX_QUERIES
from services.retriever.question import wanted_passages
from shared.errors import NotFound
from shared.files.api_key_file import KeyLimits, new_api_key
from shared.messages import (
    MAX_CORPUS_CHARS,
    MAX_FILTER_VALUES,
    MAX_FILTERS,
    MAX_QUERY_CHARS,
    Cancel,
    Message,
    Retrieve,
    Retrieved,
    ScoredPassage,
)
from tests.integration.gateway_peers import Answer, Fleet
from tests.integration.test_gateway_passages import PASSAGES, retrieving
from tests.integration.test_gateway_text_asks import key_file
from tests.support.http import Reply, call, http_client
from tests.support.wait import until

SEARCH = "/v1/vector_stores/docs/search"


@dataclass(slots=True)
class Edge:
    peers: Fleet
    client: aiohttp.ClientSession
    address: str

    async def search(self, path: str = SEARCH, **body: Any) -> Reply:
        return await call(self.client, path, {"query": "Which gate?", **body})

    def asked(self) -> list[Retrieve]:
        questions = [message for _, message in self.peers["retriever-0"].of(Retrieve)]
        return [question for question in questions if isinstance(question, Retrieve)]


@asynccontextmanager
async def edge(nats_url: str, **options: Any) -> AsyncIterator[Edge]:
    async with (
        retrieving(nats_url, **options) as (peers, running),
        http_client(running.http.address) as client,
    ):
        yield Edge(peers, client, running.http.address)


async def test_a_page_of_results_has_what_openais_has(nats_url: str) -> None:
    async with edge(nats_url) as here:
        reply = await here.search()
    assert reply.status == 200
    assert reply.body["object"] == "vector_store.search_results.page"
    assert reply.body["search_query"] == ["Which gate?"]
    assert (reply.body["has_more"], reply.body["next_page"]) == (False, None)
    assert reply.body["penstock"] == {"degraded": "", "warning": "so-so"}
    assert reply.body["data"][0] == {
        "file_id": "doc.md",
        "filename": "doc.md",
        "score": 2.5,
        "attributes": {"lang": "en", "source": "doc.md"},
        "content": [{"type": "text", "text": "A gate opens."}],
        "penstock": {"source": "doc.md § Gates", "start": 10, "end": 23, "page": 2},
    }


async def test_the_corpus_is_that_of_the_path_and_the_rest_has_openais_defaults(nats_url: str) -> None:
    async with edge(nats_url) as here:
        await here.search("/v1/vector_stores/my%20docs/search", rewrite_query=False)
        assert here.asked() == [Retrieve("Which gate?", DEFAULT_RESULTS, may_degrade=True, corpus="my docs")]


async def test_openais_own_client_searches(nats_url: str) -> None:
    async with edge(nats_url) as here:
        async with openai.AsyncOpenAI(base_url=f"http://{here.address}/v1", api_key="none") as client:
            page = await client.vector_stores.search(
                "docs",
                query="Which gate?",
                max_num_results=2,
                filters={"type": "eq", "key": "lang", "value": "en"},
                ranking_options={"ranker": "none"},
            )
        (question,) = here.asked()
    assert [found.filename for found in page.data] == ["doc.md", "other.md"]
    assert [found.content[0].text for found in page.data] == [passage.text for passage in PASSAGES]
    assert page.data[0].attributes == {"lang": "en", "source": "doc.md"}
    assert question == Retrieve(
        "Which gate?", 2, True, rerank=False, corpus="docs", filters=(("lang", ("en",)),)
    )


FILTERS: dict[str, tuple[Any, Any]] = {
    "one value": ({"type": "eq", "key": "year", "value": 2024}, (("year", ("2024",)),)),
    "a whole number": ({"type": "eq", "key": "year", "value": 2024.0}, (("year", ("2024",)),)),
    "a flag": ({"type": "eq", "key": "draft", "value": False}, (("draft", ("false",)),)),
    "several": ({"type": "in", "key": "lang", "value": ["en", "de"]}, (("lang", ("de", "en")),)),
    "all of them": (
        {
            "type": "and",
            "filters": [
                {"type": "eq", "key": "lang", "value": "en"},
                {"type": "in", "key": "year", "value": [1, 2.5]},
            ],
        },
        (("lang", ("en",)), ("year", ("1", "2.5"))),
    ),
}


@pytest.mark.thorough(but="all of them | several")
@pytest.mark.parametrize("name", FILTERS)
async def test_filters_are_those_of_the_corpus(nats_url: str, name: str) -> None:
    filters, expected = FILTERS[name]
    async with edge(nats_url) as here:
        await here.search(filters=filters)
        (question,) = here.asked()
    assert question.filters == expected


def by_words(message: Message) -> Answer:
    """Both know passage "b"; "one" finds it second, "two" first."""
    assert isinstance(message, Retrieve)
    found = {"one": "ab", "two": "bc"}[message.query]
    return Retrieved(tuple(ScoredPassage(name, name, 0.5) for name in found), "", 1, 1)


SCORES = {"one": {"a": 0.9, "b": 0.6, "c": 0.2}, "two": {"b": 0.8, "c": 0.7, "a": 0.1}}
"""How likely each passage answers each query, best first."""


def by_scores(message: Message) -> Answer:
    """Answer as a retriever does: what is below the threshold is left out."""
    assert isinstance(message, Retrieve)
    found = SCORES[message.query].items()
    passages = tuple(ScoredPassage(name, name, score) for name, score in found)
    return wanted_passages(Retrieved(passages, "", 1, 1), message)


@pytest.mark.thorough(but="0.75 | 0.8")
@pytest.mark.parametrize("threshold", [0.0, 0.65, 0.75, 0.8, 0.85, 0.95])
async def test_of_several_queries_the_threshold_holds_of_the_scores_that_are_shown(
    nats_url: str, threshold: float
) -> None:
    async with edge(nats_url, answers=by_scores) as here:
        ranking = {"score_threshold": threshold}
        reply = await here.search(query=["one", "two"], ranking_options=ranking)
    best = {"a": 0.9, "b": 0.8, "c": 0.7}
    shown = [(found["filename"], found["score"]) for found in reply.body["data"]]
    assert shown == [(name, score) for name, score in best.items() if score >= threshold]


async def test_of_several_queries_what_both_find_early_comes_first(nats_url: str) -> None:
    async with edge(nats_url, answers=by_words) as here:
        reply = await here.search(query=["one", "two"])
        short = await here.search(query=["one", "two"], max_num_results=1)
    assert [(found["filename"], found["score"]) for found in reply.body["data"]] == [
        ("b", 0.5),
        ("a", 0.5),
        ("c", 0.5),
    ]
    assert reply.body["search_query"] == ["one", "two"]
    assert [found["filename"] for found in short.body["data"]] == ["b"]


async def test_what_is_to_be_known_of_several_queries_is_said_once(nats_url: str) -> None:
    async with edge(nats_url) as here:
        reply = await here.search(query=["one", "two"], ranking_options={"ranker": "auto"})
    assert reply.body["penstock"] == {"degraded": "", "warning": "so-so"}


def comparison(**fields: Any) -> dict[str, Any]:
    return {"filters": {"type": "eq", "key": "lang", "value": "en", **fields}}


TWO_LANGUAGES = [{"type": "eq", "key": "lang", "value": value} for value in ("en", "de")]
MANY = [{"type": "eq", "key": f"k{number}", "value": "v"} for number in range(MAX_FILTERS + 1)]

WRONG: dict[str, tuple[dict[str, Any], int, str]] = {
    "no query": ({"query": None}, 400, "query"),
    "blank query": ({"query": " "}, 400, "query"),
    "a number": ({"query": 5}, 400, "query"),
    "many queries": ({"query": ["q"] * (MAX_QUERIES + 1)}, 400, "query"),
    "long query": ({"query": "q" * (MAX_QUERY_CHARS + 1)}, 413, "query"),
    "no results": ({"max_num_results": 0}, 400, "max_num_results"),
    "many results": ({"max_num_results": MAX_FOUND + 1}, 400, "max_num_results"),
    "rewriting": ({"rewrite_query": True}, 400, "rewrite_query"),
    "threshold": ({"ranking_options": {"score_threshold": 1.5}}, 400, "ranking_options.score_threshold"),
    "ranker": ({"ranking_options": {"ranker": "best"}}, 400, "ranking_options.ranker"),
    "weights": ({"ranking_options": {"hybrid_search": {}}}, 400, "ranking_options.hybrid_search"),
    "or": ({"filters": {"type": "or", "filters": []}}, 400, "filters.type"),
    "greater": (comparison(type="gt"), 400, "filters.type"),
    "eq with several": (comparison(value=["en"]), 400, "filters.value"),
    "in with one": (comparison(type="in"), 400, "filters.value"),
    "an object": (comparison(value={}), 400, "filters.value"),
    "no key": (comparison(key=""), 400, "filters[0].field"),
    "many values": (
        comparison(type="in", value=[str(n) for n in range(MAX_FILTER_VALUES + 1)]),
        400,
        "filters[0].values",
    ),
    "and in and": (
        {"filters": {"type": "and", "filters": [{"type": "and"}]}},
        400,
        "filters.filters[0].type",
    ),
    "twice": ({"filters": {"type": "and", "filters": TWO_LANGUAGES}}, 400, "filters[1].field"),
    "many filters": ({"filters": {"type": "and", "filters": MANY}}, 400, "filters.filters"),
    "deadline": ({"penstock": {"deadline_ms": 0}}, 400, "penstock.deadline_ms"),
}


@pytest.mark.thorough(but="many queries | many values | long query | threshold | or")
@pytest.mark.parametrize("name", WRONG)
async def test_what_cannot_be_meant_here_is_refused_by_name(nats_url: str, name: str) -> None:
    body, status, param = WRONG[name]
    async with edge(nats_url) as here:
        reply = await here.search(**body)
        assert here.asked() == []
    assert (reply.status, reply.error["param"]) == (status, param)


async def test_the_most_that_may_be_asked_for_is_taken(nats_url: str) -> None:
    filters = {"type": "and", "filters": MANY[:MAX_FILTERS]}
    async with edge(nats_url) as here:
        reply = await here.search(query=["q"] * MAX_QUERIES, max_num_results=MAX_FOUND, filters=filters)
        assert [question.k for question in here.asked()] == [MAX_FOUND] * MAX_QUERIES
    assert reply.status == 200


async def test_a_name_that_no_corpus_can_have_is_that_of_the_vector_store(nats_url: str) -> None:
    async with edge(nats_url) as here:
        reply = await here.search(f"/v1/vector_stores/{'c' * (MAX_CORPUS_CHARS + 1)}/search")
    assert (reply.status, reply.error["param"]) == (400, "vector_store_id")


async def test_a_corpus_that_is_not_there_is_a_404_of_its_own(nats_url: str) -> None:
    async with edge(nats_url, answers=lambda _: NotFound("there is no corpus 'docs'")) as here:
        reply = await here.search()
    assert (reply.status, reply.error["code"]) == (404, "corpus_not_found")


async def test_searches_need_a_key_where_there_are_keys_and_each_query_counts(
    nats_url: str, tmp_path: Path
) -> None:
    key = new_api_key()
    keys = key_file(tmp_path, key, KeyLimits(requests_per_min=2))
    async with edge(nats_url, api_keys=keys) as here:
        stranger = await here.search()
        body, named = {"query": ["one", "two"]}, {"authorization": f"Bearer {key}"}
        reply = await call(here.client, SEARCH, body, **named)
        over = await call(here.client, SEARCH, body, **named)
        assert {question.tenant for question in here.asked()} == {"acme"}
    assert [each.status for each in (stranger, reply, over)] == [401, 200, 429]


async def test_pages_of_an_allowed_origin_may_search(nats_url: str) -> None:
    origin = "https://app.example"
    async with edge(nats_url, http_cors_origins=(origin,)) as here:
        asking = {"Origin": origin, "Access_Control_Request_Method": "POST"}
        preflight = await call(here.client, SEARCH, method="OPTIONS", **asking)
        reply = await call(here.client, SEARCH, {"query": "q"}, Origin=origin)
    assert preflight.status == 204
    assert reply.headers["Access-Control-Allow-Origin"] == origin


async def test_a_connection_that_is_dropped_cancels_its_search(nats_url: str) -> None:
    async with edge(nats_url, answers=lambda _: None) as here:
        search = asyncio.create_task(here.search())
        await until(here.asked)
        search.cancel()
        await until(lambda: here.peers["retriever-0"].of(Cancel))
