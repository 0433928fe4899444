"""Two models of one name in a fleet: no request meets both, whatever fails."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from protos.penstock.v1 import inference_pb2 as pb
from tests.integration.gateway_peers import Fleet, ask, fleet, gateway
from tests.support.client import generate
from tests.support.wait import until

OLD: dict[str, Any] = {"weights_digest": "old", "tokenizer_digest": "t"}
NEW: dict[str, Any] = {"weights_digest": "new", "tokenizer_digest": "t"}
TEXT: dict[str, Any] = {"tokenizer_digest": "t"}
FOREIGN: dict[str, Any] = {"tokenizer_digest": "foreign"}


async def add_old_model(peers: Fleet) -> None:
    """One of each role, with number 0."""
    for role in ("prefill", "decode"):
        await peers.add(role, **OLD)
    for role in ("tokenizer", "detokenizer"):
        await peers.add(role, **TEXT)


async def test_a_request_goes_to_workers_of_one_checkpoint_though_others_of_its_name_are_idle(
    nats_url: str,
) -> None:
    async with fleet(nats_url, "retriever") as peers, gateway(nats_url) as running:
        await add_old_model(peers)
        peers["prefill-0"].say(queued_tokens=50_000)  # dearer than the one of the other checkpoint
        await peers.add("prefill", 1, **NEW)
        await peers.add("tokenizer", 1, **FOREIGN)
        await peers.add("detokenizer", 1, **FOREIGN)
        for role, count in (("prefill", 2), ("decode", 1), ("tokenizer", 2), ("detokenizer", 2)):
            await running.knows(role, count)
        for _ in range(4):  # equals would take turns
            call = asyncio.create_task(generate(running.stub, ask("hello")))
            envelope, message = await peers.placed()
            await peers.text(envelope.request_id, 5, "a", finish="stop")
            assert (await call).outcome == "finished"
            assert (message.decode, message.detokenizer) == ("decode-0", "detokenizer-0")
            peers["prefill-0"].got.clear()
        assert peers["prefill-1"].got == peers["tokenizer-1"].got == peers["detokenizer-1"].got == []


async def test_a_request_that_lost_its_worker_does_not_go_on_with_another_checkpoint(nats_url: str) -> None:
    async with fleet(nats_url, "retriever") as peers, gateway(nats_url, admit_wait_s=0.3) as running:
        await add_old_model(peers)
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a")
        for role in ("prefill", "decode"):
            await peers.add(role, 1, **NEW)
            await running.knows(role, 2)
        peers["decode-0"].say(state="draining")
        await running.knows("decode", 1)
        await peers.lost(envelope.request_id, 1)
        answer = await call
        assert (answer.outcome, answer.status) == ("failed", grpc.StatusCode.UNAVAILABLE)
        assert peers["decode-1"].got == peers["prefill-1"].got == []


async def test_the_list_shows_the_checkpoint_that_a_request_of_the_name_gets_and_no_other(
    nats_url: str,
) -> None:
    async with fleet(nats_url, "retriever") as peers, gateway(nats_url) as running:
        await add_old_model(peers)
        for role in ("prefill", "decode"):
            peers[f"{role}-0"].say(context_tokens=4096)
            await peers.add(role, 1, **NEW, context_tokens=512)
        await peers.add("tokenizer", 1, **FOREIGN, chat_template=True)
        for role, count in (("prefill", 2), ("decode", 2), ("tokenizer", 2), ("detokenizer", 1)):
            await running.knows(role, count)
        await peers.add("decode", 2, **OLD, context_tokens=4096)  # the checkpoint that most have
        await running.knows("decode", 3)
        await until(lambda: running.fleet.instances("prefill")[0].heartbeat.context_tokens == 4096)
        (model,) = [
            model
            for model in (await running.stub.ListModels(pb.ListModelsRequest())).models
            if model.kind == pb.MODEL_KIND_GENERATION
        ]
    assert (model.context_tokens, model.has_chat_template) == (4096, False)
    names = {instance.name for instance in model.instances}
    assert names == {"prefill-0", "decode-0", "decode-2", "tokenizer-0", "detokenizer-0"}
