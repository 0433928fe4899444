"""Whoever has work of a request queued before its route is told when nobody waits for it any more."""

from __future__ import annotations

import asyncio

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.bus.nats_server import NatsServer
from shared.messages import Cancel, Message, Retrieve, Retrieved, Tokenize
from tests.integration.gateway_peers import Answer, Peer, ask, default_answer, fleet, gateway
from tests.support.client import generate
from tests.support.lost_messages import lost_with, sent
from tests.support.wait import until

ROLES = ("tokenizer", "prefill", "decode", "detokenizer", "retriever")


def silent(message: Message) -> Answer:
    return None if isinstance(message, Tokenize | Retrieve) else default_answer(message)


def answering(message: Message) -> Answer:
    return Retrieved((), "", 1, 1) if isinstance(message, Retrieve) else default_answer(message)


def retrieving(*, may_degrade: bool) -> pb.GenerateRequest:
    request = ask("hello")
    request.retrieval.enabled = True
    request.retrieval.may_degrade = may_degrade
    return request


def cancelled(peer: Peer) -> list[tuple[int, str]]:
    return [(envelope.epoch, m.reason) for envelope, m in peer.of(Cancel) if isinstance(m, Cancel)]


@pytest.mark.thorough(but="retriever-Retrieve")
@pytest.mark.parametrize(("role", "asked"), [("tokenizer", Tokenize), ("retriever", Retrieve)])
async def test_a_client_that_leaves_cancels_the_work_that_is_queued(
    nats_url: str, role: str, asked: type[Message]
) -> None:
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url) as running:
        for known in ROLES:
            await running.knows(known, 1)
        for peer in peers.peers.values():
            peer.answers = answering
        holder = peers[f"{role}-0"]
        holder.answers = silent
        call = running.stub.Generate(retrieving(may_degrade=False))
        await until(lambda: holder.of(asked))
        ((envelope, _),) = holder.of(asked)
        call.cancel()
        await until(lambda: not running.registry.audit().held)
        ((epoch, reason),) = cancelled(holder)
        assert (epoch >= envelope.epoch, reason) == (True, "cancelled")
        others = [peer for name, peer in peers.peers.items() if name != holder.instance]
        assert not any(cancelled(peer) for peer in others)


async def test_a_retriever_that_is_not_waited_for_any_more_is_told_so(nats_url: str) -> None:
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url, retrieve_share=0.01) as running:
        for known in ROLES:
            await running.knows(known, 1)
        peers["retriever-0"].answers = silent
        request = retrieving(may_degrade=True)
        request.ttft_deadline_ms = 20_000
        call = asyncio.create_task(generate(running.stub, request))
        envelope, _ = await peers.placed()
        await until(lambda: cancelled(peers["retriever-0"]) == [(1, "replaced")])
        (tokenize, _), *_ = peers["tokenizer-0"].of(Tokenize)
        assert tokenize.epoch == 2  # what is cancelled is the ask before it
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        await call


async def test_a_tokenizer_that_answered_is_not_told_of_a_later_cancel(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = running.stub.Generate(ask("hello"))
        await peers.placed()
        call.cancel()
        await until(lambda: not running.registry.audit().held)
        assert set(peers.cancels()) == {"prefill-0", "decode-0", "detokenizer-0"}


@pytest.mark.thorough(but="question-retriever-Retrieve | answer-tokenizer-Tokenize")
@pytest.mark.parametrize(("role", "asked"), [("tokenizer", Tokenize), ("retriever", Retrieve)])
@pytest.mark.parametrize("lost", ["question", "answer"])
async def test_a_server_that_is_killed_during_an_ask_of_the_only_instance_costs_the_request_nothing(
    nats_server: NatsServer, role: str, asked: type[Message], lost: str
) -> None:
    url = nats_server.url
    async with fleet(url, *ROLES) as peers, gateway(url) as running:
        for known in ROLES:
            await running.knows(known, 1)
        holder = peers[f"{role}-0"]
        for peer in peers.peers.values():
            peer.answers = answering
        if lost == "answer":
            holder.answers = silent
            call = asyncio.create_task(generate(running.stub, retrieving(may_degrade=False)))
            await until(lambda: holder.of(asked))
            ((envelope, message),) = holder.of(asked)
            async with lost_with(nats_server):
                answer = answering(message)
                assert isinstance(answer, Message)
                await holder.bus.reply(envelope, answer)
                await sent(holder.bus)
            holder.answers = answering  # for what comes next
        else:
            asks = running.fleet._bus._connection.asks
            request = ask("hello") if role == "tokenizer" else retrieving(may_degrade=False)
            async with lost_with(nats_server):
                call = asyncio.create_task(generate(running.stub, request))
                await until(lambda: any(role in ask.subject for ask in asks._open.values()))
                await sent(running.fleet._bus)
        envelope, _ = await peers.placed()
        assert len(holder.of(asked)) == 1
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        await call
