"""What a gateway leaves out under pressure, and what it tells its clients and the fleet about that."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.degradation import DegradationLevel
from shared.messages import Message, Retrieve, Retrieved, ScoredPassage, Tokenize
from tests.integration.gateway_peers import Answer as PeerAnswer
from tests.integration.gateway_peers import Fleet, Running, ask, default_answer, fleet, gateway
from tests.support import metric
from tests.support.client import Answer, generate
from tests.support.wait import until

ROLES = ("tokenizer", "prefill", "decode", "detokenizer", "retriever")
FOUND = tuple(ScoredPassage("doc.md", f"Passage {n}.", 0.5) for n in range(16))


def retriever(message: Message) -> PeerAnswer:
    return (
        Retrieved(FOUND[: message.k], "", 1, 1) if isinstance(message, Retrieve) else default_answer(message)
    )


def question(k: int = 3, *, may_degrade: bool = True) -> pb.GenerateRequest:
    message = ask("what flows?")
    message.retrieval.enabled, message.retrieval.k, message.retrieval.may_degrade = True, k, may_degrade
    return message


async def answered(peers: Fleet, running: Running, message: pb.GenerateRequest) -> Answer:
    """The answer of one token to the only request."""
    peers["retriever-0"].answers = retriever
    for role in ROLES:
        await running.knows(role, 1)
    call = asyncio.create_task(generate(running.stub, message))
    envelope, prefill = await peers.placed()
    await peers.text(envelope.request_id, len(prefill.token_ids) // 4, "a", finish="stop")
    return await call


def asked(peers: Fleet) -> list[int]:
    """How many passages the retriever was asked for, each time."""
    return [m.k for _, m in peers["retriever-0"].of(Retrieve) if isinstance(m, Retrieve)]


@pytest.mark.thorough(but="4-3-wanted1-retrieval depth | 5-3-wanted4-retrieval")
@pytest.mark.parametrize(
    ("level", "k", "wanted", "told"),
    [
        (DegradationLevel.RERANK, 3, [3], ""),
        (DegradationLevel.RETRIEVAL_DEPTH, 3, [2], "retrieval depth"),
        (DegradationLevel.RETRIEVAL_DEPTH, 16, [8], "retrieval depth"),
        (DegradationLevel.RETRIEVAL_DEPTH, 1, [1], ""),
        (DegradationLevel.RETRIEVAL, 3, [], "retrieval"),
        (DegradationLevel.NEW_REQUESTS, 3, [], "retrieval"),
    ],
)
async def test_under_pressure_there_are_fewer_passages_then_none_and_the_client_is_told(
    nats_url: str, level: DegradationLevel, k: int, wanted: list[int], told: str
) -> None:
    before = metric.value("penstock_degraded_requests_total", what=told)
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url) as running:
        running.degrade(level)
        answer = await answered(peers, running, question(k))
    assert answer.prompt is not None
    assert (asked(peers), len(answer.prompt.passages), answer.prompt.degraded) == (wanted, sum(wanted), told)
    assert metric.value("penstock_degraded_requests_total", what=told) == before + (told != "")


@pytest.mark.thorough(but="7")
@pytest.mark.parametrize("level", [DegradationLevel.RETRIEVAL_DEPTH, DegradationLevel.NEW_REQUESTS])
async def test_a_request_that_may_not_degrade_has_all_its_passages_at_every_level(
    nats_url: str, level: DegradationLevel
) -> None:
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url) as running:
        running.degrade(level)
        answer = await answered(peers, running, question(may_degrade=False))
    assert answer.prompt is not None
    assert (asked(peers), len(answer.prompt.passages), answer.prompt.degraded) == ([3], 3, "")


async def test_real_pressure_climbs_to_low_priority_which_is_shed_while_others_are_served(
    nats_url: str,
) -> None:
    shed = metric.value("penstock_shed_total", hop="gateway", reason="priority")
    entered = metric.value("penstock_degradation_steps_total", step="low_priority", direction="entered")
    async with (
        fleet(nats_url, "tokenizer", "decode", "detokenizer", "retriever") as peers,
        gateway(nats_url) as running,
    ):
        await peers.add("prefill", queued_tokens=45_000, tokens_per_s=1000.0)
        for role in ROLES:
            await running.knows(role, 1)
        low, normal = ask("hello"), ask("hello")
        low.priority = pb.PRIORITY_LOW
        low.ttft_deadline_ms = normal.ttft_deadline_ms = 50_000
        call = asyncio.create_task(generate(running.stub, normal))  # 45 s of a budget of 50: all but the last
        await until(lambda: running.registry.status().gateway.degradation == DegradationLevel.LOW_PRIORITY)
        assert metric.value("penstock_degradation_level") == DegradationLevel.LOW_PRIORITY
        refused = await generate(running.stub, low)
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await call).outcome == "finished"
        assert len(peers["tokenizer-0"].of(Tokenize)) == 1
    assert (refused.outcome, refused.status) == ("shed", grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert refused.end is not None
    assert 20_000 < refused.end.error.retry_after_ms < 22_000
    assert metric.value("penstock_shed_total", hop="gateway", reason="priority") == shed + 1
    now = metric.value("penstock_degradation_steps_total", step="low_priority", direction="entered")
    assert now == entered + 1


async def test_at_the_last_level_what_its_deadline_allows_is_still_served(nats_url: str) -> None:
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url) as running:
        running.degrade(DegradationLevel.NEW_REQUESTS)
        assert (await answered(peers, running, ask("hello"))).outcome == "finished"


async def test_when_the_pressure_is_gone_the_level_falls(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.admission.degradation.FALL_AFTER_S", 0.2)
    left = metric.value("penstock_degradation_steps_total", step="short_drafts", direction="left")
    async with fleet(nats_url), gateway(nats_url) as running:
        running.degrade(DegradationLevel.NO_DRAFTS)
        await until(lambda: running.registry.status().gateway.degradation == DegradationLevel.NONE)
    now = metric.value("penstock_degradation_steps_total", step="short_drafts", direction="left")
    assert now == left + 1
