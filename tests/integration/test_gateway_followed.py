"""A request is followed from its client's header to spans at a collector, through both edges."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.bus.heartbeats.publisher import HeartbeatPublisher
from shared.deadline import SYSTEM_CLOCK
from shared.messages import Mark, RequestAccount, Reserve
from tests.integration.gateway_peers import (
    GATEWAY,
    MODEL,
    Fleet,
    Running,
    ask,
    fleet,
    gateway,
    gateway_named,
    heartbeat,
)
from tests.integration.http_edge import CHAT, HELLO, edge
from tests.support.client import generate
from tests.support.collector import CALLER, collector
from tests.support.data import REPOSITORY
from tests.support.ended_program import ended_program
from tests.support.wait import until

NAME = "client-7/of.mine"
MARKS = (Mark("prefill.queue", 10), Mark("prefill.compute", 20), Mark("detokenize", 5))
BAD_HEADERS = [
    {"x-request-id": "x" * 129},
    {"x-request-id": "two words"},
    {"traceparent": "00-0-0-01"},
    {"traceparent": "z" * 4000},
    {"traceparent": f"00-{'0' * 32}-{'0' * 16}-01"},
]


def shown(reply_headers: Mapping[str, Any]) -> tuple[str, str]:
    """Our id of the call, and the one that its client is shown."""
    headers = {name.lower(): value for name, value in reply_headers.items()}
    return headers["x-penstock-request-id"], headers["x-request-id"]


async def test_an_answer_carries_the_clients_name_of_its_call_and_ours(nats_url: str) -> None:
    async with edge(nats_url) as here:
        reply = await here.answered(CHAT, HELLO, **{"x-request-id": NAME})
        ((envelope, _),) = here.peers["decode-0"].of(Reserve)
        assert (reply.status, *shown(reply.headers)) == (200, envelope.request_id, NAME)
        unnamed = here.begin(CHAT, HELLO)
        await until(lambda: len(here.peers["decode-0"].of(Reserve)) == 2)
        envelope, _ = here.peers["decode-0"].of(Reserve)[1]
        await here.peers.text(envelope.request_id, 5, "ab", finish="stop")
        assert shown((await unnamed).headers) == (envelope.request_id, envelope.request_id)


@pytest.mark.thorough(but="1")
@pytest.mark.parametrize("bad", BAD_HEADERS, ids=[str(number) for number in range(len(BAD_HEADERS))])
async def test_what_cannot_be_used_is_replaced_and_fails_nobody(nats_url: str, bad: dict[str, str]) -> None:
    async with edge(nats_url) as here:
        reply = await here.answered(CHAT, HELLO, **bad)
        ours, theirs = shown(reply.headers)
        assert (reply.status, theirs) == (200, ours)
        ((envelope, _),) = here.peers["decode-0"].of(Reserve)
        assert envelope.trace.startswith("00-")
        assert CALLER.trace_id not in envelope.trace


async def test_a_refused_call_and_a_page_carry_a_name_too(nats_url: str) -> None:
    async with edge(nats_url) as here:
        refused = await here.post(CHAT, {"messages": 7}, **{"x-request-id": NAME})
        assert (refused.status, refused.headers["x-request-id"]) == (400, NAME)
        unnamed = await here.post(CHAT, {"messages": 7})
        assert unnamed.headers["x-request-id"].startswith(f"{GATEWAY}.")
        async with here.client.get("/health") as health:
            assert health.headers["x-request-id"]


async def test_a_call_of_grpc_has_its_names_in_both_metadata(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call: Any = running.stub.Generate(ask("hello"), metadata=(("x-request-id", NAME),))
        envelope, prefill = await peers.placed()
        assert shown(dict(await call.initial_metadata())) == (envelope.request_id, NAME)
        await peers.text(envelope.request_id, prefill.prompt_len, "ab", finish="stop")
        assert [event async for event in call][-1].end.outcome == pb.OUTCOME_FINISHED
        assert dict(await call.trailing_metadata())["x-request-id"] == NAME


async def test_calls_of_grpc_that_are_refused_or_no_requests_have_a_name_too(nats_url: str) -> None:
    named = (("x-request-id", NAME), ("traceparent", "nonsense"))
    async with gateway(nats_url) as running:
        refused: Any = running.stub.Generate(pb.GenerateRequest(), metadata=named)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            async for _ in refused:
                pass
        assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert dict(await refused.trailing_metadata())["x-request-id"] == NAME
        listed: Any = running.stub.ListModels(pb.ListModelsRequest())
        await listed
        assert dict(await listed.trailing_metadata())["x-request-id"].startswith(f"{GATEWAY}.")


async def test_a_request_is_cancelled_by_the_name_that_its_client_gave_it(nats_url: str) -> None:
    async with edge(nats_url) as here:
        begun = here.begin(CHAT, HELLO, **{"x-request-id": "mine"})
        await here.peers.placed()
        assert (await here.post("/v1/requests/mine/cancel", {})).status == 200
        assert (await begun).status == 499
        await here.idle()
        assert (await here.post("/v1/requests/mine/cancel", {})).status == 404


async def test_a_clients_name_of_its_call_cancels_it_through_any_gateway(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        named = (("x-request-id", "theirs"),)
        call: Any = running.stub.Generate(ask("hello"), metadata=named)
        await peers.placed()
        async with gateway_named(nats_url, "gateway-u", SYSTEM_CLOCK, {}) as other, beating(peers):
            await other.knows("gateway", 1)
            assert (await other.stub.Cancel(pb.CancelRequest(request_id="theirs"))).found
            ends = [event.end.outcome async for event in received(call) if event.HasField("end")]
            assert ends == [pb.OUTCOME_CANCELLED]
            assert not (await other.stub.Cancel(pb.CancelRequest(request_id="nobodys"))).found


async def received(call: Any) -> AsyncIterator[pb.GenerateEvent]:
    """Return what comes of a call that ends with an error."""
    with suppress(grpc.aio.AioRpcError):
        async for event in call:
            yield event


async def test_workers_are_told_the_trace_and_the_digest_of_the_tenant(nats_url: str) -> None:
    async with edge(nats_url) as here:
        await here.answered(CHAT, HELLO, traceparent=CALLER.header)
        envelopes = [
            envelope
            for peer in here.peers.peers.values()
            for envelope, message in peer.got
            if envelope.reply and envelope.request_id
        ]
    assert len(envelopes) >= 4
    traces = {envelope.trace for envelope in envelopes}
    assert len(traces) == 1
    (trace,) = traces
    assert trace.startswith(f"00-{CALLER.trace_id}-")
    assert trace != CALLER.header


async def answer_moved(running: Running, peers: Fleet) -> None:
    """Answer a request that two attempts are needed for, and that one tokenizer did not answer."""
    metadata = (("traceparent", CALLER.header), ("x-request-id", NAME))
    call = asyncio.create_task(generate_named(running, metadata))
    envelope, _ = await peers.placed()
    await peers.text(envelope.request_id, 5, "a", marks=MARKS)
    await peers.lost(envelope.request_id, 1)
    envelope, _ = await peers.placed(epoch=2)
    await peers.text(envelope.request_id, 6, "b", epoch=2, finish="stop", marks=MARKS)
    await call


async def generate_named(running: Running, metadata: tuple[tuple[str, str], ...]) -> None:
    events = [event async for event in running.stub.Generate(ask("hello"), metadata=metadata)]
    assert events[-1].end.outcome == pb.OUTCOME_FINISHED


async def test_a_collector_gets_a_moved_request_as_one_trace_of_its_clients(nats_url: str) -> None:
    with collector() as collecting:
        async with fleet(nats_url) as peers, gateway(nats_url, otlp_endpoint=collecting.address) as running:
            for role in ("tokenizer", "prefill", "decode", "detokenizer"):
                await running.knows(role, 1)
            await answer_moved(running, peers)
            await until(lambda: collecting.spans or collecting.broken)
    assert collecting.broken == []
    assert {span.trace_id for span in collecting.spans} == {CALLER.trace_id}
    (root,) = collecting.named(f"text_completion {MODEL}")
    assert (root.parent_id, root.attributes["penstock.client_request_id"]) == (CALLER.span_id, NAME)
    (first,), (second,) = collecting.named("attempt 1"), collecting.named("attempt 2")
    assert {first.parent_id, second.parent_id} == {root.span_id}
    assert (first.error, second.error) != ("", "")
    assert first.error.startswith("replaced: ")
    assert second.error == ""
    computed = collecting.named("prefill.compute")
    assert [span.parent_id for span in computed] == [first.span_id, second.span_id]
    assert {(span.service, span.instance) for span in computed} == {("penstock-prefill", "prefill-0")}
    (tokenized,) = collecting.named("tokenize")
    assert (tokenized.service, tokenized.parent_id) == ("penstock-tokenizer", root.span_id)
    assert first.end_ns <= second.start_ns


async def test_without_configuration_there_is_neither_thread_nor_export(nats_url: str) -> None:
    with collector() as collecting:
        async with fleet(nats_url) as peers, gateway(nats_url) as running:
            await answer_moved(running, peers)
            await until(lambda: told(running))
        assert collecting.exports == 0


async def told(running: Running) -> bool:
    """Whether the request has ended and can be told of."""
    return isinstance(await running.registry.account(NAME), RequestAccount)


async def test_no_request_waits_for_a_collector_that_does_not_answer(nats_url: str) -> None:
    with collector() as collecting:
        collecting.held.clear()
        async with fleet(nats_url) as peers, gateway(nats_url, otlp_endpoint=collecting.address) as running:
            for turn in range(3):
                assert await answered(running, peers, turn) == "finished"
            collecting.held.set()


async def answered(running: Running, peers: Fleet, turn: int) -> str:
    """How a request ended that is the `turn`-th of this fleet."""
    call = asyncio.create_task(generate(running.stub, ask("hello")))
    await until(lambda: len(peers["decode-0"].of(Reserve)) == turn + 1)
    envelope, _ = peers["decode-0"].of(Reserve)[turn]
    await peers.text(envelope.request_id, 5, "a", finish="stop")
    return (await call).outcome


@asynccontextmanager
async def beating(peers: Fleet) -> AsyncIterator[None]:
    """The gateway of this process says that it is there, as its service would."""
    beats = HeartbeatPublisher(peers.bus, "gateway", GATEWAY, lambda: heartbeat("gateway", GATEWAY))
    beats.start()
    yield
    await beats.stop()


async def why(nats_url: str, *argv: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "why", "--nats-url", nats_url, *argv),
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    return await ended_program(process)


async def test_penstock_why_tells_of_a_moved_request_by_either_name(nats_url: str) -> None:
    async with (
        fleet(nats_url) as peers,
        gateway(nats_url) as running,
        beating(peers),
    ):
        await answer_moved(running, peers)
        ((envelope, _), _) = peers["decode-0"].of(Reserve)
        code, out, err = await why(nats_url, NAME)
        assert (code, err) == (0, "")
        assert f"request {envelope.request_id} ({NAME})" in out
        assert "attempt 1 on prefill-0, decode-0, detokenizer-0 was given up" in out
        assert "what is usual cannot be said yet" in out
        assert "prefill.compute" in out
        assert (await why(nats_url, envelope.request_id))[0] == 0
        code, out, _ = await why(nats_url, f"{GATEWAY}.000000000000")
        assert code == 1
        assert "it never came, or it is too old" in out
