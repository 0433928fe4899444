"""Retrieve of a real gateway, over gRPC and in OpenAI's shape, before scripted retrievers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.asks.passage_asks import DEFAULT_FOUND, MAX_FOUND
from shared.degradation import DegradationLevel
from shared.errors import InternalError, NotFound
from shared.files.api_key_file import KeyLimits, new_api_key
from shared.messages import (
    MAX_CORPUS_CHARS,
    MAX_QUERY_CHARS,
    Cancel,
    CorpusReport,
    Message,
    Retrieve,
    Retrieved,
    ScoredPassage,
)
from tests.integration.gateway_peers import Answer, Fleet, Running, default_answer, fleet, gateway
from tests.integration.test_gateway_text_asks import key_file, refused
from tests.support.wait import until

PASSAGES = (
    ScoredPassage("doc.md § Gates", "A gate opens.", 2.5, 10, 23, 2, (("lang", "en"), ("source", "doc.md"))),
    ScoredPassage("other.md", "Water flows.", 1.5, 0, 12),
)


def finding(message: Message) -> Answer:
    """As many of the passages as are wanted; reranked, if that is."""
    if isinstance(message, Retrieve):
        degraded = "" if message.rerank else "rerank"
        return Retrieved(PASSAGES[: message.k], degraded, 1, 1, warning="so-so", corpus="docs")
    return default_answer(message)


@asynccontextmanager
async def retrieving(
    nats_url: str,
    answers: Callable[[Message], Answer] = finding,
    *,
    retrievers: int = 1,
    **options: object,
) -> AsyncIterator[tuple[Fleet, Running]]:
    async with fleet(nats_url, "retriever") as peers, gateway(nats_url, **options) as running:
        for number in range(1, retrievers):
            await peers.add("retriever", number)
        for peer in peers.peers.values():
            peer.answers = answers
        await running.knows("retriever", retrievers)
        yield peers, running


def asked(peers: Fleet) -> Retrieve:
    """The one question."""
    ((_, question),) = peers["retriever-0"].of(Retrieve)
    assert isinstance(question, Retrieve)
    return question


async def test_passages_come_best_first_with_where_they_stand(nats_url: str) -> None:
    async with retrieving(nats_url) as (_, running):
        answer = await running.stub.Retrieve(pb.RetrieveRequest(query="Which gate?"))
    first, second = answer.passages
    assert (first.source, first.text, first.score) == ("doc.md § Gates", "A gate opens.", 2.5)
    assert (first.start, first.end, first.page) == (10, 23, 2)
    assert dict(first.metadata) == {"lang": "en", "source": "doc.md"}
    assert (second.source, second.prompt_place) == ("other.md", 0)
    assert (answer.corpus, answer.degraded, answer.warning) == ("docs", "", "so-so")


async def test_what_is_left_out_has_its_default(nats_url: str) -> None:
    async with retrieving(nats_url) as (peers, running):
        await running.stub.Retrieve(pb.RetrieveRequest(query="Which gate?"))
        assert asked(peers) == Retrieve("Which gate?", DEFAULT_FOUND, may_degrade=True)


async def test_what_is_asked_for_reaches_the_retriever(nats_url: str) -> None:
    request = pb.RetrieveRequest(
        query="Which gate?",
        k=MAX_FOUND,
        corpus="docs",
        filters=[pb.MetadataFilter(field="lang", values=["en", "de"])],
        may_degrade=False,
    )
    async with retrieving(nats_url) as (peers, running):
        await running.stub.Retrieve(request)
        assert asked(peers) == Retrieve(
            "Which gate?", MAX_FOUND, may_degrade=False, corpus="docs", filters=(("lang", ("de", "en")),)
        )


async def test_what_was_to_be_left_out_is_not_said_to_be_missing(nats_url: str) -> None:
    async with retrieving(nats_url) as (peers, running):
        answer = await running.stub.Retrieve(pb.RetrieveRequest(query="Which gate?", rerank=False))
        assert not asked(peers).rerank
    assert answer.degraded == ""


@pytest.mark.thorough(but="True-False")
@pytest.mark.parametrize(("may_degrade", "reranks"), [(True, False), (False, True)])
async def test_under_pressure_reranking_is_left_out_where_that_will_do(
    nats_url: str, may_degrade: bool, reranks: bool
) -> None:
    async with retrieving(nats_url) as (peers, running):
        running.degrade(DegradationLevel.RERANK)
        answer = await running.stub.Retrieve(pb.RetrieveRequest(query="Which?", may_degrade=may_degrade))
        assert asked(peers).rerank is reranks
    assert answer.degraded == ("" if reranks else "rerank")


async def test_the_longest_question_is_taken(nats_url: str) -> None:
    async with retrieving(nats_url) as (peers, running):
        await running.stub.Retrieve(pb.RetrieveRequest(query="q" * MAX_QUERY_CHARS))
        assert len(asked(peers).query) == MAX_QUERY_CHARS


WRONG = {
    "no query": (pb.RetrieveRequest(), "query is blank"),
    "blank query": (pb.RetrieveRequest(query=" \n"), "query is blank"),
    "long query": (
        pb.RetrieveRequest(query="q" * (MAX_QUERY_CHARS + 1)),
        f"at most {MAX_QUERY_CHARS}",
    ),
    "k of 0": (pb.RetrieveRequest(query="q", k=0), f"k is 0: send an integer from 1 to {MAX_FOUND}"),
    "large k": (pb.RetrieveRequest(query="q", k=MAX_FOUND + 1), f"k is {MAX_FOUND + 1}"),
    "long corpus": (pb.RetrieveRequest(query="q", corpus="c" * (MAX_CORPUS_CHARS + 1)), "corpus has 65"),
    "no value": (
        pb.RetrieveRequest(query="q", filters=[pb.MetadataFilter(field="lang")]),
        "filters[0].values has 0",
    ),
}


@pytest.mark.thorough(but="large k | long query")
@pytest.mark.parametrize("name", WRONG)
async def test_what_cannot_be_searched_for_is_refused_with_what_to_send(nats_url: str, name: str) -> None:
    request, pattern = WRONG[name]
    async with retrieving(nats_url) as (peers, running):
        error = await refused(running.stub.Retrieve(request))
        assert not peers["retriever-0"].got
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert pattern in str(error.details())


async def test_where_no_documents_are_indexed_there_is_nothing_to_find(nats_url: str) -> None:
    def empty(message: Message) -> Answer:
        return Retrieved((), "no corpus", 0, 0)

    async with retrieving(nats_url, empty) as (_, running):
        error = await refused(running.stub.Retrieve(pb.RetrieveRequest(query="q")))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert "--corpus" in str(error.details())


@pytest.mark.parametrize("corpus", ["", "docs"])
async def test_who_searches_the_corpus_is_asked_and_not_who_does_not_yet(nats_url: str, corpus: str) -> None:
    async with retrieving(nats_url, lambda _: NotFound("nothing here")) as (peers, running):
        peers["retriever-0"].say(corpora=(CorpusReport("docs", 0, 0, "it is being indexed"),))
        knowing = await peers.add("retriever", 1, corpora=(CorpusReport("docs", 10, 3),))
        knowing.answers = finding
        await running.knows("retriever", 2)
        for _ in range(3):
            assert (await running.stub.Retrieve(pb.RetrieveRequest(query="q", corpus=corpus))).passages
        assert not peers["retriever-0"].of(Retrieve)


async def test_what_the_retriever_does_not_have_is_asked_for_once(nats_url: str) -> None:
    async with retrieving(nats_url, lambda _: NotFound("there is no corpus 'x'")) as (peers, running):
        error = await refused(running.stub.Retrieve(pb.RetrieveRequest(query="q", corpus="x")))
        assert len(peers["retriever-0"].of(Retrieve)) == 1
    assert error.code() is grpc.StatusCode.NOT_FOUND


async def test_without_a_retriever_the_client_hears_so_at_once(nats_url: str) -> None:
    async with gateway(nats_url, admit_wait_s=600.0) as running:
        error = await refused(running.stub.Retrieve(pb.RetrieveRequest(query="q")))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert (
        error.details()
        == "retriever: no retriever is running: start one, as `penstock up --corpus PATH` does"
    )


# ---- retrievers that fail, clients that go -----------------------------------------------------------------


async def test_a_retriever_that_breaks_is_left_for_another(nats_url: str) -> None:
    async with retrieving(nats_url, retrievers=2) as (peers, running):
        peers["retriever-0"].answers = lambda _: InternalError("broken")
        for _ in range(2):  # in turn, so one of them begins with the broken one
            assert (await running.stub.Retrieve(pb.RetrieveRequest(query="q"))).passages
        assert peers["retriever-0"].of(Retrieve)


async def test_a_retriever_that_is_lost_in_the_middle_is_not_waited_for(nats_url: str) -> None:
    async with retrieving(nats_url, lambda _: None) as (peers, running):
        call = asyncio.ensure_future(running.stub.Retrieve(pb.RetrieveRequest(query="q")))
        await until(lambda: peers["retriever-0"].of(Retrieve))
        (await peers.add("retriever", 1)).answers = finding
        await running.knows("retriever", 2)
        await peers["retriever-0"].stop()
        assert (await call).passages


async def test_a_client_that_goes_away_cancels_its_question(nats_url: str) -> None:
    async with retrieving(nats_url, lambda _: None) as (peers, running):
        call = asyncio.ensure_future(running.stub.Retrieve(pb.RetrieveRequest(query="q")))
        await until(lambda: peers["retriever-0"].of(Retrieve))
        call.cancel()
        await until(lambda: peers["retriever-0"].of(Cancel))
        ((question, _),) = peers["retriever-0"].of(Retrieve)
        ((cancel, _),) = peers["retriever-0"].of(Cancel)
        await running.text_calls.drain()  # nothing is live
    assert (cancel.request_id, cancel.epoch) == (question.request_id, question.epoch)


async def test_questions_are_those_of_the_keys_tenant_and_count_in_its_limits(
    nats_url: str, tmp_path: Path
) -> None:
    key = new_api_key()
    keys = key_file(tmp_path, key, KeyLimits(requests_per_min=1))
    metadata = (("authorization", f"Bearer {key}"),)
    async with retrieving(nats_url, api_keys=keys) as (peers, running):
        stranger = await refused(running.stub.Retrieve(pb.RetrieveRequest(query="q")))
        await running.stub.Retrieve(pb.RetrieveRequest(query="q"), metadata=metadata)
        error = await refused(running.stub.Retrieve(pb.RetrieveRequest(query="q"), metadata=metadata))
        assert asked(peers).tenant == "acme"
    assert stranger.code() is grpc.StatusCode.UNAUTHENTICATED
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "requests_per_min" in str(error.details())


async def test_a_draining_gateway_takes_no_question(nats_url: str) -> None:
    async with retrieving(nats_url) as (_, running):
        await running.server.drain()
        error = await refused(running.stub.Retrieve(pb.RetrieveRequest(query="q")))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
