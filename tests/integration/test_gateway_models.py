"""Several models in a fleet, also of one name: no request meets two, whatever fails."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from protos.penstock.v1 import inference_pb2 as pb
from shared.messages import Reserve
from tests.integration.gateway_peers import Fleet, Running, ask, fleet, gateway
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


ONE: dict[str, Any] = {"model": "one", "tokenizer_digest": "t"}
TWO: dict[str, Any] = {"model": "two", "tokenizer_digest": "t"}


async def add_two_models(peers: Fleet, running: Running) -> None:
    """Workers number 0 have the one model, those number 1 the other."""
    for number, served in enumerate((ONE, TWO)):
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await peers.add(role, number, **served)
            await running.knows(role, number + 1)


def ask_of(model: str) -> pb.GenerateRequest:
    message = ask("hello")
    message.model = model
    return message


async def test_a_request_waits_for_a_worker_of_its_model_beside_one_that_has_all_of_its_own(
    nats_url: str,
) -> None:
    async with fleet(nats_url, "retriever") as peers, gateway(nats_url) as running:
        await add_two_models(peers, running)
        peers["decode-1"].say(state="draining")
        await running.knows("decode", 1)
        waiting = asyncio.create_task(generate(running.stub, ask_of("two")))
        other = asyncio.create_task(generate(running.stub, ask_of("one")))
        envelope, message = await peers.placed()
        assert (message.decode, message.detokenizer) == ("decode-0", "detokenizer-0")
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await other).outcome == "finished"
        assert not waiting.done()
        await peers.add("decode", 2, **TWO)
        envelope, message = await peers.placed(prefill="prefill-1")
        assert (message.decode, message.detokenizer) == ("decode-2", "detokenizer-1")
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await waiting).outcome == "finished"


async def test_a_model_whose_worker_does_not_come_back_is_unavailable_and_an_unknown_one_not_found(
    nats_url: str,
) -> None:
    async with fleet(nats_url, "retriever") as peers, gateway(nats_url, admit_wait_s=0.1) as running:
        await add_two_models(peers, running)
        peers["decode-1"].say(state="draining")
        await running.knows("decode", 1)
        away = await generate(running.stub, ask_of("two"))
        assert away.status is grpc.StatusCode.UNAVAILABLE
        assert "no decode instance of the model 'two' is ready" in away.details
        unknown = await generate(running.stub, ask_of("three"))
        assert unknown.status is grpc.StatusCode.NOT_FOUND


async def test_a_request_without_a_model_takes_the_default_one_or_hears_which_there_are(
    nats_url: str,
) -> None:
    async with fleet(nats_url, "retriever") as peers:
        async with gateway(nats_url, default_model="two") as running:
            await add_two_models(peers, running)
            call = asyncio.create_task(generate(running.stub, ask("hello")))
            envelope, message = await peers.placed(prefill="prefill-1")
            assert message.decode == "decode-1"
            await peers.text(envelope.request_id, 5, "a", finish="stop")
            answer = await call
            assert answer.prompt is not None
            assert answer.prompt.model == "two"
            models = (await running.stub.ListModels(pb.ListModelsRequest())).models
            generating = [each for each in models if each.kind == pb.MODEL_KIND_GENERATION]
            assert [(each.name, each.is_default) for each in generating] == [("two", True), ("one", False)]
        async with gateway(nats_url) as running:
            for role in ("tokenizer", "prefill", "decode", "detokenizer"):
                await running.knows(role, 2)
            answer = await generate(running.stub, ask("hello"))
            assert answer.status is grpc.StatusCode.INVALID_ARGUMENT
            assert "model is empty but several are served: send one of one, two" in answer.details


async def test_a_speculator_drafts_for_the_models_that_it_names_alone(nats_url: str) -> None:
    async with fleet(nats_url, "retriever") as peers, gateway(nats_url) as running:
        await add_two_models(peers, running)
        await peers.add("speculator", model="tiny", drafts_for=("two",))
        await running.knows("speculator", 1)
        for number, (model, drafted) in enumerate((("one", ""), ("two", "speculator-0"))):
            call = asyncio.create_task(generate(running.stub, ask_of(model)))
            envelope, _ = await peers.placed(prefill=f"prefill-{number}")
            ((_, reserve),) = peers[f"decode-{number}"].of(Reserve)
            assert isinstance(reserve, Reserve)
            assert reserve.speculator == drafted
            await peers.text(envelope.request_id, 5, "a", finish="stop")
            assert (await call).outcome == "finished"


async def test_requests_that_wait_for_a_model_leave_room_for_those_of_another(nats_url: str) -> None:
    async with fleet(nats_url, "retriever") as peers, gateway(nats_url, max_sessions=8) as running:
        await add_two_models(peers, running)
        peers["decode-1"].say(state="draining")
        await running.knows("decode", 1)
        calls = {asyncio.create_task(generate(running.stub, ask_of("two"))) for _ in range(8)}
        while len(calls) > 2:  # a quarter of the sessions may wait
            done, calls = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            for call in done:
                assert (await call).outcome == "shed"
                assert (
                    "no decode instance of the model 'two' is ready, and 2 requests" in (await call).details
                )
        assert running.registry.status().gateway.wanted_models == ("two",)
        other = asyncio.create_task(generate(running.stub, ask_of("one")))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await other).outcome == "finished"
        await peers.add("decode", 2, **TWO)
        for _ in calls:
            envelope, _ = await peers.placed(prefill="prefill-1")
            await peers.text(envelope.request_id, 5, "a", finish="stop")
            peers["prefill-1"].got = [each for each in peers["prefill-1"].got if each[0] is not envelope]
        assert [(await call).outcome for call in calls] == ["finished"] * 2
