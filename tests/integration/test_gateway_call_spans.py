"""Calls that generate nothing have spans too: the call, and whom it asked, in the trace of its client."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import InternalError, NotFound
from shared.messages import (
    CorpusReport,
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    Message,
    RerankTexts,
    Retrieve,
    Retrieved,
    ScoredPassage,
    TextScores,
    Tokenize,
)
from tests.integration.gateway_peers import MODEL, Answer, Fleet, Running, default_answer, fleet, gateway
from tests.support.collector import CALLER, CollectedSpan, Collector, collector
from tests.support.http import call, http_client
from tests.support.wait import until

EMBEDDER, RERANKER = "embedder", "reranker"
PASSAGE = ScoredPassage("rivers.md", "Water flows.", 0.9, start=0, end=12)
CALLS: dict[str, tuple[str, dict[str, Any], str, str, type[Message]]] = {
    "embeddings": ("/v1/embeddings", {"input": ["a", "bb"]}, EMBEDDER, "retriever-0", Embed),
    "retrieval": ("/v1/vector_stores/docs/search", {"query": "what flows?"}, "docs", "retriever-0", Retrieve),
    "rerank": ("/v1/rerank", {"query": "q", "documents": ["a", "b"]}, RERANKER, "retriever-0", RerankTexts),
    "tokenize": ("/tokenize", {"prompt": "hello"}, MODEL, "tokenizer-0", Tokenize),
    "detokenize": ("/detokenize", {"tokens": [1, 2]}, MODEL, "tokenizer-0", Detokenize),
}
"""Operation → path, body, what it is of, who is asked, and what."""


def answers(message: Message) -> Answer:
    match message:
        case Embed():
            vectors = tuple(array("f", [1.0, 0.5]).tobytes() for _ in message.texts)
            return Embedded(vectors, tuple(3 for _ in message.texts), tuple(False for _ in message.texts))
        case Retrieve():
            return Retrieved((PASSAGE,), "", 1, 1, corpus="docs")
        case RerankTexts():
            count = len(message.texts)
            return TextScores((0.5,) * count, (2,) * count, (False,) * count)
        case Detokenize():
            return Detokenized("ab")
        case _:
            return default_answer(message)


@asynccontextmanager
async def asking(
    nats_url: str, collecting: Collector, **options: object
) -> AsyncIterator[tuple[Fleet, Running]]:
    options = {"otlp_endpoint": collecting.address, **options}
    async with fleet(nats_url, "tokenizer", "decode") as peers, gateway(nats_url, **options) as running:
        corpora = (CorpusReport("docs", 1, 1),)
        await peers.add("retriever", model=EMBEDDER, reranker=RERANKER, corpora=corpora)
        for peer in peers.peers.values():
            peer.answers = answers
        for role in ("tokenizer", "decode", "retriever"):
            await running.knows(role, 1)
        yield peers, running


async def spans_of(collecting: Collector, count: int) -> list[CollectedSpan]:
    await until(lambda: len(collecting.spans) >= count or collecting.broken)
    assert collecting.broken == []
    return collecting.spans


@pytest.mark.thorough(but="rerank")
@pytest.mark.parametrize("operation", CALLS)
async def test_a_call_and_whom_it_asks_are_spans_of_its_clients_trace(nats_url: str, operation: str) -> None:
    path, body, of, instance, kind = CALLS[operation]
    headers = {"traceparent": CALLER.header, "x-request-id": "mine"}
    with collector() as collecting:
        async with (
            asking(nats_url, collecting) as (peers, running),
            http_client(running.http.address) as client,
        ):
            assert (await call(client, path, body, **headers)).status == 200
            await spans_of(collecting, 2)
            ((envelope, _),) = peers[instance].of(kind)
    root, asked = collecting.spans
    assert (root.name, root.service, root.parent_id) == (
        f"{operation} {of}",
        "penstock-gateway",
        CALLER.span_id,
    )
    assert root.attributes["gen_ai.operation.name"] == operation
    assert root.attributes["penstock.client_request_id"] == "mine"
    assert {root.trace_id, asked.trace_id} == {CALLER.trace_id}
    role = instance.partition("-")[0]
    assert (asked.name, asked.parent_id) == (f"ask {instance}", root.span_id)
    assert (asked.service, asked.instance) == (f"penstock-{role}", instance)
    assert root.start_ns <= asked.start_ns <= asked.end_ns <= root.end_ns
    assert (root.error, asked.error) == ("", "")
    assert envelope.trace == replace(CALLER, span_id=root.span_id).header


async def test_a_call_for_vectors_says_what_it_read(nats_url: str) -> None:
    with collector() as collecting:
        async with asking(nats_url, collecting) as (_, running):
            await running.stub.Embed(pb.EmbedRequest(texts=["a"] * 9))
            root, first, second = await spans_of(collecting, 3)
    assert root.attributes["gen_ai.usage.input_tokens"] == 27
    assert root.attributes["gen_ai.request.model"] == EMBEDDER
    assert {first.parent_id, second.parent_id} == {root.span_id}


async def test_an_instance_that_fails_and_a_call_that_does_have_errors(nats_url: str) -> None:
    def failing(message: Message) -> Answer:
        return InternalError("broken", hop="retriever") if isinstance(message, Embed) else answers(message)

    with collector() as collecting:
        async with (
            asking(nats_url, collecting) as (peers, running),
            http_client(running.http.address) as client,
        ):
            peers["retriever-0"].answers = failing
            assert (await call(client, "/v1/embeddings", {"input": "a"})).status == 500
            await until(lambda: collecting.spans)
            await peers.add("retriever", 1, model=EMBEDDER)
            peers["retriever-1"].answers = answers
            await running.knows("retriever", 2)
            assert (await call(client, "/v1/embeddings", {"input": "a"})).status == 200
            await until(lambda: len(collecting.named(f"embeddings {EMBEDDER}")) == 2)
    failed, answered = collecting.named(f"embeddings {EMBEDDER}")
    assert (failed.attributes["error.type"], answered.error) == ("internal", "")
    assert "broken" in failed.error
    assert {span.error for span in collecting.named("ask retriever-0")} == {"no answer: internal"}
    assert [span.error for span in collecting.named("ask retriever-1")] == [""]


async def test_a_corpus_that_is_not_there_is_the_error_of_its_search(nats_url: str) -> None:
    with collector() as collecting:
        async with (
            asking(nats_url, collecting) as (peers, running),
            http_client(running.http.address) as client,
        ):
            peers["retriever-0"].answers = lambda _: NotFound("there is none", hop="retriever")
            assert (await call(client, "/v1/vector_stores/none/search", {"query": "q"})).status == 404
            root = (await spans_of(collecting, 2))[0]
    assert (root.name, root.attributes["error.type"]) == ("retrieval none", "corpus_not_found")


async def test_a_call_whose_trace_is_not_sampled_has_no_spans(nats_url: str) -> None:
    unsampled = replace(CALLER, sampled=False)
    with collector() as collecting:
        async with asking(nats_url, collecting) as (_, running), http_client(running.http.address) as client:
            assert (
                await call(client, "/tokenize", {"prompt": "a"}, traceparent=unsampled.header)
            ).status == 200
            assert (await call(client, "/detokenize", {"tokens": [1]})).status == 200
            await spans_of(collecting, 2)
    assert [span.name for span in collecting.spans] == [f"detokenize {MODEL}", "ask tokenizer-0"]


async def test_the_share_of_traces_that_begin_here_is_configured_and_a_caller_may_want_more(
    nats_url: str,
) -> None:
    options = {"trace_sampler": "parentbased_traceidratio", "trace_sample_ratio": 0.0}
    with collector() as collecting:
        async with (
            asking(nats_url, collecting, **options) as (peers, running),
            http_client(running.http.address) as client,
        ):
            for _ in range(3):
                assert (await call(client, "/tokenize", {"prompt": "a"})).status == 200
            sampled = {"traceparent": CALLER.header}
            assert (await call(client, "/tokenize", {"prompt": "a"}, **sampled)).status == 200
            await spans_of(collecting, 2)
            flags = [envelope.trace[-2:] for envelope, _ in peers["tokenizer-0"].of(Tokenize)]
    assert {span.trace_id for span in collecting.spans} == {CALLER.trace_id}
    assert flags == ["00", "00", "00", "01"]
