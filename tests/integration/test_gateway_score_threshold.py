"""A least score of passages: refused before anything is generated, over gRPC and HTTP; searched with."""

from __future__ import annotations

import grpc
import openai
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.messages import Prefill, Retrieve, Retrieved
from tests.integration.test_gateway_citations import RETRIEVING, client_of
from tests.integration.test_gateway_prompt_passages import FOUND, answered, question, serving
from tests.support.client import generate


async def test_without_a_passage_of_that_score_nothing_is_generated(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        peers["retriever-0"].answers = lambda _: Retrieved((), "", 1, 1)
        answer = await generate(running.stub, question(score_threshold=0.75))
        assert peers["prefill-0"].of(Prefill) == []
        ((_, asked),) = peers["retriever-0"].of(Retrieve)
    assert answer.status is grpc.StatusCode.NOT_FOUND
    assert answer.end is not None
    assert answer.end.error.code == "no_passages"
    assert answer.end.error.hop == "retriever"
    assert "no passage has a score of 0.75 or more: lower retrieval.score_threshold" in answer.details
    assert isinstance(asked, Retrieve)
    assert asked.score_threshold == 0.75


async def test_what_was_left_out_is_said_and_refused_too(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        peers["retriever-0"].answers = lambda _: Retrieved((), "no corpus", 1, 1)
        answer = await generate(running.stub, question(score_threshold=0.75))
    assert "(no corpus was left out)" in answer.details


async def test_with_one_or_without_a_threshold_it_is_answered(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running):
        for found, threshold in ((FOUND, 0.75), ((), 0.0)):
            peers["retriever-0"].answers = lambda _, found=found: Retrieved(found, "", 1, 1)  # type: ignore[misc]
            peers["prefill-0"].got.clear()
            answer, _ = await answered(peers, running, question(score_threshold=threshold))
            assert answer.outcome == "finished"


@pytest.mark.thorough(but="nan")
@pytest.mark.parametrize("wrong", [-0.1, 1.5, float("nan")])
async def test_a_threshold_that_no_score_has_names_its_field(nats_url: str, wrong: float) -> None:
    async with serving(nats_url) as (_, running):
        answer = await generate(running.stub, question(score_threshold=wrong))
        assert answer.status is grpc.StatusCode.INVALID_ARGUMENT
        assert "retrieval.score_threshold is" in answer.details
        with pytest.raises(grpc.aio.AioRpcError, match="score_threshold is"):
            await running.stub.Retrieve(pb.RetrieveRequest(query="a", score_threshold=wrong))


async def test_over_http_the_code_is_the_same(nats_url: str) -> None:
    body = {"penstock": {"retrieval": {"score_threshold": 0.5}}}
    async with serving(nats_url) as (peers, running), client_of(running) as client:
        peers["retriever-0"].answers = lambda _: Retrieved((), "", 1, 1)
        with pytest.raises(openai.NotFoundError) as refused:
            await client.responses.create(**{**RETRIEVING, "extra_body": body})
    assert refused.value.code == "no_passages"


async def test_a_search_is_asked_with_the_threshold(nats_url: str) -> None:
    async with serving(nats_url) as (peers, running), client_of(running) as client:
        await running.stub.Retrieve(pb.RetrieveRequest(query="a", score_threshold=0.25))
        await client.vector_stores.search(
            "default", query="a", ranking_options={"ranker": "auto", "score_threshold": 0.5}
        )
        asked = [message for _, message in peers["retriever-0"].of(Retrieve)]
    assert [each.score_threshold for each in asked if isinstance(each, Retrieve)] == [0.25, 0.5]
