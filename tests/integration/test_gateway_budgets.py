"""What of a request's time each hop of the preprocessing may take, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from protos.penstock.v1 import inference_pb2 as pb
from services.retriever.actor import RetrieverActor
from services.retriever.config import RetrieverConfig
from services.retriever.corpora import Corpora
from shared.actor import receiver
from shared.deadline import Deadline
from shared.messages import Retrieve, Retrieved, Tokenize
from shared.process.service import Service
from tests.integration.gateway_peers import Fleet, Running, ask, default_answer, fleet, gateway
from tests.integration.test_retriever_service import HeldSearch, indexed
from tests.support.client import generate
from tests.support.wait import until

ROLES = ("tokenizer", "prefill", "decode", "detokenizer", "retriever")


def question(ttft_ms: int, *, may_degrade: bool) -> pb.GenerateRequest:
    message = ask("what flows?")
    message.retrieval.enabled, message.retrieval.may_degrade = True, may_degrade
    message.deadline_ms, message.ttft_deadline_ms = 50_000, ttft_ms
    return message


async def knows_all(running: Running) -> None:
    for role in ROLES:
        await running.knows(role, 1)


@asynccontextmanager
async def stuck_retriever(peers: Fleet) -> AsyncIterator[HeldSearch]:
    """A real retriever in the place of the scripted one, whose search ends with the test."""
    service, search = Service("retriever", RetrieverConfig(), "retriever-0"), HeldSearch()
    service.bus = peers.bus
    actor = service.supervisor.start(
        lambda: RetrieverActor(service, Corpora([indexed()]), search.compute, reranker="")
    )
    peers["retriever-0"].on_message = receiver(actor)
    try:
        yield search
    finally:
        search.go.set()
        await service.supervisor.stop(Deadline.after(5.0))


async def test_a_retriever_that_may_degrade_has_its_share_and_the_tokenizer_what_is_left(
    nats_url: str,
) -> None:
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url, retrieve_share=0.25) as running:
        await knows_all(running)
        peers["retriever-0"].answers = lambda message: (
            Retrieved((), "", 1, 1) if isinstance(message, Retrieve) else default_answer(message)
        )
        began_us = time.time_ns() // 1000
        call = asyncio.create_task(generate(running.stub, question(20_000, may_degrade=True)))
        envelope, prefill = await peers.placed()
        ended_us = time.time_ns() // 1000
        retrieve, _ = peers["retriever-0"].of(Retrieve)[0]
        tokenize, _ = peers["tokenizer-0"].of(Tokenize)[0]
        await peers.text(envelope.request_id, 11, "a", finish="stop")
        await call
    assert began_us + 4_900_000 <= retrieve.deadline_us <= ended_us + 5_000_000
    # Deadlines are absolute: what retrieval did not use is the others' without being handed on.
    assert began_us + 19_900_000 <= tokenize.deadline_us <= ended_us + 20_000_000
    assert abs(prefill.first_token_us - tokenize.deadline_us) < 10_000
    assert began_us + 49_900_000 <= envelope.deadline_us


async def test_a_retriever_that_may_not_degrade_has_until_the_first_token_is_due(nats_url: str) -> None:
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url) as running:
        await knows_all(running)
        peers["retriever-0"].answers = lambda _: None
        began_us = time.time_ns() // 1000
        call = running.stub.Generate(question(20_000, may_degrade=False))
        await until(lambda: peers["retriever-0"].of(Retrieve))
        ended_us = time.time_ns() // 1000
        retrieve, _ = peers["retriever-0"].of(Retrieve)[0]
        call.cancel()
    assert began_us + 19_900_000 <= retrieve.deadline_us <= ended_us + 20_000_000


async def test_at_its_soft_limit_a_retriever_answers_without_passages_and_the_client_is_told(
    nats_url: str,
) -> None:
    async with (
        fleet(nats_url, *ROLES) as peers,
        gateway(nats_url, retrieve_share=0.05) as running,
        stuck_retriever(peers) as search,
    ):
        await knows_all(running)
        call = asyncio.create_task(generate(running.stub, question(10_000, may_degrade=True)))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 11, "a", finish="stop")
        answer = await call
    assert search.batches == [["what flows?"]]
    assert (answer.outcome, answer.text) == ("finished", "a")
    assert answer.prompt is not None
    assert (answer.prompt.degraded, len(answer.prompt.passages)) == ("retrieval", 0)


async def test_at_its_hard_limit_the_request_expires_there_and_what_follows_is_never_started(
    nats_url: str,
) -> None:
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url) as running, stuck_retriever(peers):
        await knows_all(running)
        answer = await generate(running.stub, question(400, may_degrade=False))
        assert not peers["tokenizer-0"].of(Tokenize)
    assert (answer.outcome, answer.status) == ("expired", grpc.StatusCode.DEADLINE_EXCEEDED)
    assert answer.end is not None
    assert answer.end.error.hop == "retriever"


async def test_a_question_whose_share_ran_out_in_the_queue_is_never_searched(nats_url: str) -> None:
    async with (
        fleet(nats_url, *ROLES) as peers,
        gateway(nats_url, retrieve_share=0.05) as running,
        stuck_retriever(peers) as search,
    ):
        await knows_all(running)
        for number in range(2):  # the second one waits behind the first one's search, past its own share
            call = asyncio.create_task(generate(running.stub, question(10_000, may_degrade=True)))
            await until(lambda number=number: len(peers["prefill-0"].got) > number)  # type: ignore[misc]
            envelope, _ = peers["prefill-0"].got[number]
            await peers.text(envelope.request_id, 11, "a", finish="stop")
            assert (await call).outcome == "finished"
        search.go.set()
        await until(lambda: not running.registry.audit().held)
    assert search.batches == [["what flows?"]]
