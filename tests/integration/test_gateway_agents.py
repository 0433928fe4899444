"""While an agent's tool runs, whoever is likely to get its next prompt computes what is known of it."""

from __future__ import annotations

import asyncio

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.messages import WARM_EPOCH, Envelope, Tokenize, Warm, unpack_hashes, unpack_ids
from tests.integration.gateway_peers import GATEWAY, Fleet, fleet, gateway
from tests.support.block_hashes import hashes_of
from tests.support.client import generate
from tests.support.metric import value
from tests.support.wait import until

ROLES = ("tokenizer", "prefill", "decode", "detokenizer")
ASKED = "You may look things up. Does it rain in Oslo, and will it rain in Rome tomorrow, or in Lima? "
FINISH_S = 10.0
ANSWER = "I look it up, one after the other, and tell you then."


def call(**hints: object) -> pb.GenerateRequest:
    request = pb.GenerateRequest(agent=pb.AgentHints(session="run-7", **hints))  # type: ignore[arg-type]
    request.chat.messages.add(role="user", content=ASKED)
    return request


async def answer(peers: Fleet, request: pb.GenerateRequest, stub: object) -> str:
    """Have the request answered by ANSWER; returns its id."""
    asking = asyncio.create_task(generate(stub, request))  # type: ignore[arg-type]
    envelope, placed = await peers.placed()
    await peers.text(envelope.request_id, placed.prompt_len, ANSWER, finish="stop")
    await asking
    return envelope.request_id


async def warm_of(peers: Fleet) -> tuple[Envelope, Warm]:
    await until(lambda: peers["prefill-0"].of(Warm))
    envelope, warm = peers["prefill-0"].of(Warm)[-1]
    assert isinstance(warm, Warm)
    return envelope, warm


async def test_prompt_and_answer_are_computed_before_the_next_call_comes(nats_url: str) -> None:
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url) as running:
        for role in ROLES:
            await running.knows(role, 1)
        request_id = await answer(peers, call(warm_next=True, pause_ms=4000), running.stub)
        envelope, warm = await warm_of(peers)
        known = [ord(char) for char in ASKED + ANSWER]
        blocks = len(known) // 16
        assert unpack_ids(warm.token_ids) == known[: 16 * blocks]
        assert unpack_hashes(warm.block_hashes) == hashes_of(known, "", "", "")[:blocks]
        assert (envelope.request_id, envelope.epoch) == (f"{request_id}.next", WARM_EPOCH)
        assert (warm.gateway, warm.patient) == (GATEWAY, True)
        assert envelope.deadline_us > 0


@pytest.mark.thorough(but="switched off")
@pytest.mark.parametrize(
    ("hints", "options"),
    [
        ({"warm_next": True}, {"warm_next_turn": False}),
        ({"warm_next": True, "final": True}, {}),
        ({}, {}),
    ],
    ids=["switched off", "last call", "no call of a tool"],
)
async def test_nothing_is_computed_ahead_of_what_will_not_come(
    nats_url: str, hints: dict[str, object], options: dict[str, object]
) -> None:
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url, **options) as running:
        for role in ROLES:
            await running.knows(role, 1)
        request_id = await answer(peers, call(**hints), running.stub)
        await until(lambda: running.context.ended_requests.find(request_id))
        await running.context.tasks.finish(FINISH_S)
        assert peers["prefill-0"].of(Warm) == []
        assert len(peers["tokenizer-0"].of(Tokenize)) == 1


@pytest.mark.parametrize("lacking", [0, 1])
async def test_a_block_that_the_likely_worker_lacks_is_asked_for(nats_url: str, lacking: int) -> None:
    result = "asked" if lacking else "short"
    before = value("penstock_next_turns_total", result=result)
    known = [ord(char) for char in ASKED + ANSWER]
    names = hashes_of(known[: len(known) // 16 * 16], "", "", "")
    async with fleet(nats_url, *ROLES) as peers, gateway(nats_url) as running:
        for role in ROLES:
            await running.knows(role, 1)
        for role in ("prefill", "decode"):
            view = running.context.fleet.get(role, f"{role}-0")
            assert view is not None
            view.prefix.update(names[: len(names) - lacking])
        await answer(peers, call(warm_next=True), running.stub)
        await until(lambda: value("penstock_next_turns_total", result=result) == before + 1)
        await until(lambda: any(peers[name].of(Warm) for name in ("prefill-0", "decode-0")) == bool(lacking))
