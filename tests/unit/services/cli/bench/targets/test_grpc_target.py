"""Penstock's own contract over real gRPC, against a servicer that answers as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.cli.bench.targets.grpc_target import GrpcTarget
from services.cli.bench.targets.openai_words import hint_headers
from services.cli.bench.targets.target import (
    CallEnded,
    CallFacts,
    CallHints,
    CallOutcome,
    StreamPiece,
    TargetCall,
    TargetSampling,
)

CALL = TargetCall((("system", "Be brief."), ("user", "Hello?")), 16, deadline_ms=70)
Context = grpc.aio.ServicerContext[pb.GenerateRequest, pb.GenerateEvent]
Answer = Callable[[pb.GenerateRequest, Context], AsyncIterator[pb.GenerateEvent]]


class Scripted(rpc.InferenceServicer):
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[tuple[pb.GenerateRequest, dict[str, str], str]] = []
        self.ended = asyncio.Event()

    async def Generate(  # type: ignore[override]  # a stream by `yield` is one too  # noqa: N802
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateEvent]:
        self.asked.append((request, dict(context.invocation_metadata() or ()), context.peer()))
        # A cancel may come while gRPC writes, outside of this.
        context.add_done_callback(lambda _: self.ended.set())  # type: ignore[arg-type]  # the stubs
        async for event in self.answer(request, context):
            yield event

    async def ListModels(  # noqa: N802 - the contract's name
        self,
        request: pb.ListModelsRequest,  # noqa: ARG002 - it asks for nothing
        context: grpc.aio.ServicerContext[pb.ListModelsRequest, pb.ListModelsResponse],  # noqa: ARG002
    ) -> pb.ListModelsResponse:
        kinds = {"a-embedder": pb.MODEL_KIND_EMBEDDING, "b-model": pb.MODEL_KIND_GENERATION}
        return pb.ListModelsResponse(models=[pb.Model(name=n, kind=k) for n, k in kinds.items()])


@asynccontextmanager
async def served(answer: Answer, *, plain: bool = False) -> AsyncIterator[tuple[Scripted, GrpcTarget]]:
    servicer, server = Scripted(answer), grpc.aio.server()
    rpc.add_InferenceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    target = GrpcTarget(f"127.0.0.1:{port}", TargetSampling("", 0.5, True), key="secret", plain=plain)
    try:
        yield servicer, target
    finally:
        await target.close()
        await server.stop(None)


def text(said: str, *ids: int) -> pb.GenerateEvent:
    return pb.GenerateEvent(text=pb.TextDelta(text=said, token_ids=ids))


async def whole(request: pb.GenerateRequest, context: Context) -> AsyncIterator[pb.GenerateEvent]:
    yield pb.GenerateEvent(prompt=pb.PromptInfo(request_id="r", model="m", prompt_tokens=9))
    yield text("Hi", 1)
    yield text(" you", 2, 3)
    phases = [pb.Phase(name="decode", duration_us=1500), pb.Phase(name="decode", duration_us=500)]
    usage = pb.Usage(completion_tokens=3, cached_tokens=4, accepted_draft_tokens=2, replacements=1)
    end = pb.Terminal(outcome=pb.OUTCOME_FINISHED, usage=usage, timeline=pb.Timeline(phases=phases))
    yield pb.GenerateEvent(end=end)


async def test_a_chat_is_sent_and_read() -> None:
    facts = CallFacts()
    async with served(whole) as (servicer, target), aclosing(target.pieces(CALL, facts)) as pieces:
        assert [piece async for piece in pieces] == [StreamPiece("Hi", 1), StreamPiece(" you", 2)]
    assert facts == CallFacts("m", "r", 9, 3, 4, 2, 1, phases_ms={"decode": 2.0})
    ((request, metadata, _),) = servicer.asked
    assert [message.content for message in request.chat.messages] == ["Be brief.", "Hello?"]
    assert request.chat.template_optional
    assert (request.sampling.temperature, request.sampling.max_tokens) == (0.5, 16)
    assert (request.sampling.ignore_eos, request.deadline_ms) == (True, 70)
    assert metadata["authorization"] == "Bearer secret"


async def test_a_plain_prompt_is_a_text() -> None:
    async with (
        served(whole, plain=True) as (servicer, target),
        aclosing(target.pieces(CALL, CallFacts())) as pieces,
    ):
        assert len([piece async for piece in pieces]) == 2
    assert servicer.asked[0][0].text == "Be brief.\n\nHello?"


async def test_a_call_of_an_agent_says_so() -> None:
    call = replace(CALL, hints=CallHints("s", "p", final=True, pause_ms=9, goes_on=True))
    async with served(whole) as (servicer, target), aclosing(target.pieces(call, CallFacts())) as pieces:
        assert len([piece async for piece in pieces]) == 2
    assert servicer.asked[0][0].agent == pb.AgentHints(
        session="s", parent_session="p", final=True, pause_ms=9, warm_next=True
    )
    assert hint_headers(call) == {
        "x-dynamo-session-id": "s",
        "x-dynamo-parent-session-id": "p",
        "x-dynamo-session-final": "true",
    }


async def test_a_schema_and_passages_are_asked_for() -> None:
    call = replace(CALL, json_schema='{"type": "object"}', passages=7)
    async with served(whole) as (servicer, target), aclosing(target.pieces(call, CallFacts())) as pieces:
        assert len([piece async for piece in pieces]) == 2
    ((request, _, _),) = servicer.asked
    assert request.sampling.json_schema == '{"type": "object"}'
    assert request.retrieval == pb.Retrieval(enabled=True, k=7, may_degrade=False)


async def test_the_first_model_that_generates_is_found() -> None:
    async with served(whole) as (_, target):
        assert await target.find_model() == "b-model"


@pytest.mark.parametrize(
    ("outcome", "status", "found"),
    [
        (pb.OUTCOME_SHED, grpc.StatusCode.RESOURCE_EXHAUSTED, CallOutcome.SHED),
        (pb.OUTCOME_EXPIRED, grpc.StatusCode.DEADLINE_EXCEEDED, CallOutcome.EXPIRED),
        (pb.OUTCOME_CANCELLED, grpc.StatusCode.CANCELLED, CallOutcome.FAILED),
        (pb.OUTCOME_FAILED, grpc.StatusCode.INVALID_ARGUMENT, CallOutcome.REFUSED),
        (pb.OUTCOME_FAILED, grpc.StatusCode.UNAVAILABLE, CallOutcome.FAILED),
        (None, grpc.StatusCode.RESOURCE_EXHAUSTED, CallOutcome.SHED),
        (None, grpc.StatusCode.UNAUTHENTICATED, CallOutcome.REFUSED),
        (None, grpc.StatusCode.UNKNOWN, CallOutcome.FAILED),
    ],
)
async def test_a_call_ends_as_its_terminal_event_or_else_its_status_says(
    outcome: pb.Outcome | None, status: grpc.StatusCode, found: CallOutcome
) -> None:
    async def answer(request: pb.GenerateRequest, context: Context) -> AsyncIterator[pb.GenerateEvent]:
        if outcome is not None:
            error = pb.Error(code="a_code", message="why")
            yield pb.GenerateEvent(end=pb.Terminal(outcome=outcome, error=error))
        await context.abort(status, "why")

    async with served(answer) as (_, target):
        with pytest.raises(CallEnded) as raised:
            async with aclosing(target.pieces(CALL, CallFacts())) as pieces:
                assert [piece async for piece in pieces] == []
    code = " a_code" if outcome is not None else ""
    assert (raised.value.outcome, raised.value.kind) == (found, f"grpc {status.name}{code}")
    assert raised.value.told == "why"


@pytest.mark.parametrize("alone", [False, True])
async def test_leaving_ends_the_call_and_one_that_is_alone_has_its_own_connection(alone: bool) -> None:
    async def endless(request: pb.GenerateRequest, context: Context) -> AsyncIterator[pb.GenerateEvent]:
        yield text("Hi", 1)
        await asyncio.Event().wait()

    async with served(endless) as (servicer, target):
        async with aclosing(target.pieces(CALL, CallFacts())) as other:
            await anext(other)
            call = TargetCall(CALL.messages, 16, alone=alone)
            async with aclosing(target.pieces(call, CallFacts())) as pieces:
                assert await anext(pieces) == StreamPiece("Hi", 1)
            async with asyncio.timeout(60):
                await servicer.ended.wait()
        peers = {peer for _, _, peer in servicer.asked}
    assert len(peers) == (2 if alone else 1)


async def test_a_gateway_that_is_not_there_ends_the_call() -> None:
    target = GrpcTarget("127.0.0.1:9", TargetSampling())
    try:
        with pytest.raises(CallEnded, match="grpc UNAVAILABLE"):
            await target.find_model()
    finally:
        await target.close()
