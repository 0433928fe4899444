"""A gateway and what its requests leave open of sampling: settled once, told to workers and clients alike."""

from __future__ import annotations

import asyncio

import grpc

from protos.penstock.v1 import inference_pb2 as pb
from shared.messages import Prefill, Reserve
from shared.sampling.defaults import DEFAULTED, SamplingDefault
from tests.integration.gateway_peers import Fleet, Running, ask, fleet, gateway
from tests.integration.http_edge import Edge, edge
from tests.support.client import generate
from tests.support.wait import until

COLD = (
    SamplingDefault("temperature", 0.2, "the model's card"),
    SamplingDefault("top_p", 0.9, "the model's card"),
)
WARM = (SamplingDefault("temperature", 0.8, "default_sampling"),)
FLOAT32 = pb.Sampling(temperature=0.2, top_p=0.9)
"""The numbers as the contract carries them."""


async def announce(
    peers: Fleet, running: Running, defaults: tuple[SamplingDefault, ...], instance: str = "decode-0"
) -> None:
    peers[instance].say(default_sampling=defaults)
    await until(
        lambda: any(
            view.heartbeat.instance == instance and view.heartbeat.decode.default_sampling == defaults
            for view in running.fleet.instances("decode")
        )
    )


async def everyone(running: Running) -> None:
    for role in ("tokenizer", "prefill", "decode", "detokenizer"):
        await running.knows(role, 1)


async def test_workers_and_client_are_told_what_is_in_force_field_by_field(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await everyone(running)
        await announce(peers, running, COLD)
        call = asyncio.create_task(generate(running.stub, ask("hello", top_p=0.5)))
        envelope, prefill = await peers.placed()
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        answer = await call
        reserve = next(message for _, message in peers["decode-0"].got if isinstance(message, Reserve))
    assert prefill.sampling == reserve.sampling
    assert (prefill.sampling.temperature, prefill.sampling.top_p) == (FLOAT32.temperature, 0.5)
    assert answer.prompt is not None
    told = answer.prompt.sampling
    assert all(told.HasField(name) for name in DEFAULTED)
    assert (told.temperature, told.top_p, told.top_k, told.max_tokens) == (FLOAT32.temperature, 0.5, 0, 512)


async def test_a_request_that_is_placed_anew_keeps_what_it_began_with(nats_url: str) -> None:
    """Though the model's defaults are others by then: one answer is drawn in one way."""
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await everyone(running)
        await announce(peers, running, COLD)
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, first = await peers.placed()
        await peers.text(envelope.request_id, 5, "a")
        await announce(peers, running, WARM)
        await peers.lost(envelope.request_id, 1)
        await until(lambda: len([m for _, m in peers["prefill-0"].got if isinstance(m, Prefill)]) == 2)
        again = [message for _, message in peers["prefill-0"].got if isinstance(message, Prefill)][-1]
        await peers.text(envelope.request_id, 6, "b", finish="stop", epoch=2)
        assert (await call).outcome == "finished"
    assert again.sampling == first.sampling


async def test_both_lists_of_models_say_what_holds_and_who_says_it(nats_url: str) -> None:
    async with edge(nats_url) as here:
        await announce(here.peers, here.running, COLD)
        listed = (await here.running.stub.ListModels(pb.ListModelsRequest())).models[0]
        async with here.client.get("/v1/models/test-model") as reply:
            described = (await reply.json())["penstock"]["default_sampling"]
    assert [each.name for each in listed.default_sampling] == list(DEFAULTED) == list(described)
    assert described["temperature"] == {"value": 0.2, "source": "the model's card"}
    assert described["top_k"] == {"value": 0, "source": "built in"}
    told = [{"value": each.value, "source": each.source} for each in listed.default_sampling]
    assert told == list(described.values())


async def drawn(here: Edge, path: str, body: dict[str, object]) -> tuple[dict[str, object], Prefill]:
    reply = here.begin(path, body)
    envelope, prefill = await here.peers.placed()
    await here.peers.text(envelope.request_id, prefill.prompt_len, "ab", finish="stop")
    here.peers["prefill-0"].got.clear()
    return (await reply).body, prefill


async def test_every_interface_over_http_takes_what_its_request_leaves_open(nats_url: str) -> None:
    bodies: dict[str, dict[str, object]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
        "/v1/completions": {"prompt": "hello"},
        "/v1/responses": {"input": "hello"},
    }
    async with edge(nats_url) as here:
        await announce(here.peers, here.running, COLD)
        for path, body in bodies.items():
            _, left_open = await drawn(here, path, body)
            _, said = await drawn(here, path, {**body, "temperature": 1, "top_p": 1})
            assert (left_open.sampling.temperature, left_open.sampling.top_p) == (
                FLOAT32.temperature,
                FLOAT32.top_p,
            )
            assert (said.sampling.temperature, said.sampling.top_p) == (1.0, 1.0)


async def test_a_response_says_what_was_in_force(nats_url: str) -> None:
    async with edge(nats_url) as here:
        await announce(here.peers, here.running, COLD)
        body, _ = await drawn(here, "/v1/responses", {"input": "hello", "top_p": 0.5})
    assert (body["temperature"], body["top_p"], body["max_output_tokens"]) == (FLOAT32.temperature, 0.5, 512)


async def test_the_default_limit_of_a_gateway_is_that_of_both_edges(nats_url: str) -> None:
    async with edge(nats_url, default_max_tokens=7) as here:
        _, over_http = await drawn(here, "/v1/completions", {"prompt": "hello"})
        call = asyncio.create_task(generate(here.running.stub, ask("hello")))
        envelope, over_grpc = await here.peers.placed()
        await here.peers.text(envelope.request_id, 5, "a", finish="stop")
        await call
    assert over_http.sampling.max_tokens == over_grpc.sampling.max_tokens == 7


async def test_a_cache_that_the_model_s_sampling_rules_out_is_refused(nats_url: str) -> None:
    message = ask("hello")
    message.cache.mode = pb.CACHE_MODE_EXACT
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await everyone(running)
        await announce(peers, running, COLD)
        answer = await generate(running.stub, message)
    assert (answer.outcome, answer.status) == ("failed", grpc.StatusCode.INVALID_ARGUMENT)
    assert "cache needs an answer that comes again" in answer.details
