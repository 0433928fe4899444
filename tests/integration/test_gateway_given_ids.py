"""A prompt that comes as ids needs no tokenizer: the gateway checks them and names their blocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import grpc
import pytest

from services.gateway.prompt.preprocessor import MAX_IDS_NAMED_HERE
from shared.bus import Delivery
from shared.messages import Prefill, Tokenize, unpack_hashes, unpack_ids
from tests.integration.gateway_peers import Fleet, Peer, Running, fleet, gateway
from tests.support.block_hashes import hashes_of
from tests.support.client import Answer, generate, request
from tests.support.wait import until

VOCAB = 1000
LAYOUT = "a layout"


@asynccontextmanager
async def gateway_that_knows_the_vocabulary(url: str) -> AsyncIterator[tuple[Fleet, Running]]:
    async with fleet(url, "detokenizer") as peers, gateway(url) as running:
        await peers.add("tokenizer", vocab_tokens=VOCAB)
        for role in ("prefill", "decode"):
            await peers.add(role, layout=LAYOUT)
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        yield peers, running


async def answered(peers: Fleet, running: Running, ids: Sequence[int]) -> tuple[Prefill, Answer]:
    call = asyncio.create_task(generate(running.stub, request(ids)))
    envelope, prefill = await peers.placed()
    await peers.text(envelope.request_id, len(ids), "a", finish="stop")
    return prefill, await call


async def test_ids_go_to_their_workers_without_a_tokenizer(nats_url: str) -> None:
    ids = list(range(40))
    async with gateway_that_knows_the_vocabulary(nats_url) as (peers, running):
        prefill, answer = await answered(peers, running, ids)
        assert not peers["tokenizer-0"].of(Tokenize)
    assert answer.outcome == "finished"
    assert unpack_ids(prefill.token_ids) == ids
    assert unpack_hashes(prefill.block_hashes) == hashes_of(ids, LAYOUT)


async def test_ids_outside_of_the_vocabulary_are_refused_before_anybody_is_asked(nats_url: str) -> None:
    async with gateway_that_knows_the_vocabulary(nats_url) as (peers, running):
        answer = await generate(running.stub, request([5, VOCAB]))
        assert not any(peer.got for peer in peers.peers.values())
    assert answer.status is grpc.StatusCode.INVALID_ARGUMENT
    assert f"token id {VOCAB} is not in the vocabulary" in answer.details


@pytest.mark.parametrize("beyond", [0, 1])
async def test_a_long_prompt_of_ids_is_left_to_a_tokenizer(nats_url: str, beyond: int) -> None:
    async with gateway_that_knows_the_vocabulary(nats_url) as (peers, running):
        call = running.stub.Generate(request([7] * (MAX_IDS_NAMED_HERE + beyond)))
        await until(lambda: peers["prefill-0"].of(Prefill))
        assert len(peers["tokenizer-0"].of(Tokenize)) == beyond
        call.cancel()


async def test_of_the_three_workers_prefill_is_asked_first(nats_url: str) -> None:
    async with gateway_that_knows_the_vocabulary(nats_url) as (peers, running):
        order: list[str] = []

        def noting(peer: Peer) -> Callable[[Delivery], None]:
            def take(delivery: Delivery) -> None:
                order.append(type(delivery.message).__name__)
                peer.receive(delivery)

            return take

        for peer in peers.peers.values():
            peer.on_message = noting(peer)
        await answered(peers, running, [1, 2, 3])
    assert order[0] == "Prefill"
