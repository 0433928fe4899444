"""The gRPC edge: what it refuses, how calls end early, health, reflection, draining."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import PenstockError, UnknownMessage
from shared.messages import (
    AuditReport,
    AuditRequest,
    Cancel,
    Envelope,
    KvAbortAck,
    Message,
    Prefill,
    Reserve,
    Tokenize,
)
from tests.integration.gateway_peers import (
    GATEWAY,
    Answer,
    Fleet,
    Running,
    ask,
    default_answer,
    fleet,
    gateway,
)
from tests.support import metric
from tests.support.client import generate
from tests.support.wait import until

CROWD = 2500
CROWD_MS = 240_000
"""Longer than it takes to refuse them on a machine with ten times more work than cores."""
"""The calls that come at once: the library alone cancels some of so many."""
AS_BYTES: tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]] = (bytes, bytes)
"""Writes and reads messages as they are."""
ALL_THREE = {"decode-0", "prefill-0", "detokenizer-0"}


def changed(**fields: object) -> pb.GenerateRequest:
    message = ask("hello")
    message.MergeFrom(pb.GenerateRequest(**fields))  # type: ignore[arg-type]  # the fields are those of the message
    return message


BAD: dict[str, tuple[pb.GenerateRequest, str]] = {
    "no prompt": (pb.GenerateRequest(), "prompt"),
    "empty text": (pb.GenerateRequest(text=""), "text"),
    "no ids": (pb.GenerateRequest(token_ids=pb.TokenIds()), "token_ids"),
    "no messages": (pb.GenerateRequest(chat=pb.ChatPrompt()), "chat.messages"),
    "bad role": (
        pb.GenerateRequest(chat=pb.ChatPrompt(messages=[pb.ChatMessage(role="boss", content="x")])),
        "chat.messages[0].role",
    ),
    "nan": (ask(temperature=float("nan")), "sampling.temperature"),
    "infinite": (ask(repetition_penalty=float("inf")), "sampling.repetition_penalty"),
    "negative": (ask(top_k=-1), "sampling.top_k"),
    "contradiction": (ask(min_tokens=5, max_tokens=4), "min_tokens"),
    "stops": (ask(stop=["x"] * 17), "sampling.stop"),
    "k": (changed(retrieval=pb.Retrieval(enabled=True, k=17)), "retrieval.k"),
    "deadline": (changed(deadline_ms=0), "deadline_ms"),
    "ttft deadline": (changed(ttft_deadline_ms=-1), "ttft_deadline_ms"),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_input_is_an_invalid_argument_that_names_the_field(nats_url: str, name: str) -> None:
    message, field = BAD[name]
    async with gateway(nats_url) as running:
        answer = await generate(running.stub, message)
        assert running.registry.audit().held == ()
    assert answer.status is grpc.StatusCode.INVALID_ARGUMENT
    assert field in answer.details
    assert (answer.outcome, answer.ends) == ("failed", 1)
    assert answer.end is not None
    assert answer.end.error.code == "invalid_request"


async def test_an_unknown_model_is_not_found_and_the_served_one_is_named(nats_url: str) -> None:
    async with fleet(nats_url), gateway(nats_url) as running:
        answer = await generate(running.stub, changed(model="gpt"))
    assert answer.status is grpc.StatusCode.NOT_FOUND
    assert "test-model" in answer.details
    assert answer.outcome == "failed"


async def test_a_request_over_the_size_limit_is_refused_by_grpc(nats_url: str) -> None:
    async with gateway(nats_url, max_request_bytes=2048) as running:
        answer = await generate(running.stub, ask("x" * 4000))
    assert answer.status is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_full_gateway_sheds_with_a_retry_hint(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url, max_sessions=1) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        refused = await generate(running.stub, ask("hello"))
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await call).outcome == "finished"
    assert (refused.outcome, refused.status) == ("shed", grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert refused.end is not None
    assert refused.end.error.retry_after_ms > 0


async def test_a_busy_prefill_sheds_what_cannot_meet_its_deadline(nats_url: str) -> None:
    async with fleet(nats_url, "tokenizer", "decode", "detokenizer") as peers, gateway(nats_url) as running:
        await peers.add("prefill", queued_tokens=100_000, tokens_per_s=1000.0)
        await running.knows("prefill", 1)
        await running.knows("decode", 1)
        answer = await generate(running.stub, changed(ttft_deadline_ms=500))
    assert answer.outcome == "shed"
    assert answer.end is not None
    assert answer.end.error.retry_after_ms > 90_000


# ---- ends before the end --------------------------------------------------------------------------


async def drop_call(
    nats_url: str, silent: type[Message] | None, when: Callable[[Fleet], bool], text: str = ""
) -> Fleet:
    """Start a call, drop it once `when` holds; the fleet after nothing is held any more."""

    def answers(message: Message) -> Answer:
        return None if silent is not None and isinstance(message, silent) else default_answer(message)

    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        for peer in peers.peers.values():
            peer.answers = answers
        call = running.stub.Generate(ask("hello"))
        assert (await call.read()).prompt.prompt_tokens == 5 if silent is not Tokenize else True
        if text:
            envelope, _ = await peers.placed()
            await peers.text(envelope.request_id, 5, text)
            assert (await call.read()).text.text == text
        await until(lambda: when(peers))
        call.cancel()
        await until(lambda: running.registry.audit().held == ())
    return peers


async def test_a_client_that_leaves_in_mid_stream_cancels_exactly_the_holders(nats_url: str) -> None:
    peers = await drop_call(nats_url, None, lambda _: True, text="ab")
    assert peers.cancels() == {instance: [(1, "cancelled")] for instance in ALL_THREE}
    assert peers.broadcasts == []


async def test_a_client_that_leaves_before_the_first_token_cancels_the_holders(nats_url: str) -> None:
    peers = await drop_call(nats_url, None, lambda peers: bool(peers["prefill-0"].of(Prefill)))
    assert peers.cancels() == {instance: [(1, "cancelled")] for instance in ALL_THREE}


async def test_a_client_that_leaves_while_an_ask_is_open_cancels_that_holder_too(nats_url: str) -> None:
    peers = await drop_call(nats_url, Reserve, lambda peers: bool(peers["decode-0"].of(Reserve)))
    assert peers.cancels() == {instance: [(1, "cancelled")] for instance in ALL_THREE}


async def test_a_missing_acknowledgement_is_followed_by_a_broadcast(nats_url: str) -> None:
    peers = await drop_call(nats_url, Cancel, lambda peers: bool(peers["decode-0"].of(Reserve)))
    assert [envelope.epoch for envelope in peers.broadcasts] == [1]


async def test_a_client_that_does_not_read_is_cancelled(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url, max_buffered_tokens=100) as running:
        call = running.stub.Generate(ask("hello"))
        envelope, _ = await peers.placed()
        position = 5
        while running.registry.audit().held and position < 5_000_000:
            await peers.text(envelope.request_id, position, "x" * 10_000, ids=tuple(range(20)))
            position += 20
        await until(lambda: running.registry.audit().held == ())
        assert position < 5_000_000
        events = [event async for event in _tolerant(call)]
    assert events[-1].end.outcome == pb.OUTCOME_CANCELLED
    assert "unread" in events[-1].end.error.message
    assert set(peers.cancels()) == ALL_THREE


async def _tolerant(call: AsyncIterator[pb.GenerateEvent]) -> AsyncIterator[pb.GenerateEvent]:
    try:
        async for event in call:
            yield event
    except grpc.aio.AioRpcError:
        return


@pytest.mark.thorough(but="Reserve-route")
@pytest.mark.parametrize(
    ("silent", "hop"),
    [(Tokenize, "tokenizer"), (Reserve, "route"), (None, "prefill")],
)
async def test_a_passed_deadline_names_the_hop_it_passed_in(
    nats_url: str, silent: type[Message] | None, hop: str
) -> None:
    def answers(message: Message) -> Answer:
        return None if silent is not None and isinstance(message, silent) else default_answer(message)

    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await running.knows("decode", 1)
        await running.knows("tokenizer", 1)
        await running.knows("prefill", 1)
        await running.knows("detokenizer", 1)
        for peer in peers.peers.values():
            peer.answers = answers
        answer = await generate(running.stub, changed(ttft_deadline_ms=500))
        await until(lambda: running.registry.audit().held == ())
    assert (answer.outcome, answer.status) == ("expired", grpc.StatusCode.DEADLINE_EXCEEDED)
    assert answer.end is not None
    assert answer.end.error.hop == hop
    assert set(peers.cancels()) == ({"tokenizer-0"} if silent is Tokenize else ALL_THREE)


async def test_the_total_deadline_counts_after_the_first_token(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, changed(deadline_ms=1000, ttft_deadline_ms=900)))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a")
        answer = await call
    assert (answer.outcome, answer.text) == ("expired", "a")
    assert answer.end is not None
    assert answer.end.error.hop == "decode"


async def test_the_deadline_of_the_call_ends_it_with_a_terminal_event(
    nats_url: str, early_ends: float
) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        answer = await generate(running.stub, ask("hello"), timeout_s=early_ends)
        await until(lambda: running.registry.audit().held == ())
    assert answer.status is grpc.StatusCode.DEADLINE_EXCEEDED
    assert answer.outcome == "expired"
    assert {reason for told in peers.cancels().values() for _, reason in told} == {"expired"}


# ---- the rest of the edge ---------------------------------------------------------------------------


async def health_of(running: Running) -> int:
    stub = health_pb2_grpc.HealthStub(running.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service="penstock.v1.Inference"))
    return int(answer.status)


async def test_health_is_serving_only_while_every_needed_role_is_there(nats_url: str) -> None:
    serving = health_pb2.HealthCheckResponse.SERVING
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await asyncio.wait_for(running.server.serving.wait(), 60)
        assert await health_of(running) == serving
        await peers["tokenizer-0"].stop()
        await until(lambda: _is(running, health_pb2.HealthCheckResponse.NOT_SERVING))


async def _is(running: Running, status: int) -> bool:
    return await health_of(running) == status


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_lists_the_service_under_both_of_its_names(nats_url: str, version: str) -> None:
    async with gateway(nats_url) as running:
        stream = running.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        call = stream(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        names = [s.name async for answer in call for s in answer.list_services_response.service]
    assert {"penstock.v1.Inference", "grpc.health.v1.Health"} <= set(names)


async def test_a_draining_gateway_finishes_what_is_live_and_takes_nothing_new(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        drain = asyncio.create_task(running.server.drain())
        await until(lambda: running.registry.drain_gate.closing)
        refused = await generate(running.stub, ask("hello"))
        assert not drain.done()
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await call).outcome == "finished"
        await drain
    assert refused.status is grpc.StatusCode.UNAVAILABLE


async def test_stopping_cancels_what_is_live(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        await peers.placed()
        await running.registry.cancel_sessions(2.0)
        answer = await call
    assert answer.outcome == "cancelled"
    assert set(peers.cancels()) == ALL_THREE


async def test_an_audit_shows_live_sessions_and_their_phase(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello")))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a")
        subject, deadline = inbox("gateway", GATEWAY), Deadline.after(60)
        report = await peers.bus.ask(subject, AuditRequest(), Envelope(), deadline)
        await peers.text(envelope.request_id, 6, "b", finish="stop")
        await call
    assert isinstance(report, AuditReport)
    assert [(held.request_id, held.kind) for held in report.held] == [(envelope.request_id, "session")]


async def test_a_message_for_another_service_is_answered_with_a_typed_error(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url):
        with pytest.raises(UnknownMessage) as caught:
            await peers.bus.ask(inbox("gateway", GATEWAY), KvAbortAck(1), Envelope(), Deadline.after(60))
    assert isinstance(caught.value, PenstockError)


@pytest.mark.thorough(but="Generate")
@pytest.mark.parametrize("method", ["Generate", "Tokenize", "Retrieve"])
async def test_bytes_that_are_no_message_are_an_invalid_argument(nats_url: str, method: str) -> None:
    before = metric.total("penstock_requests_total", outcome="failed")
    async with gateway(nats_url) as running:
        path = f"/penstock.v1.Inference/{method}"
        sent = b"\xff" * 40
        try:
            if method == "Generate":
                async for _ in running.channel.unary_stream(path, *AS_BYTES)(sent):
                    pass
            else:
                await running.channel.unary_unary(path, *AS_BYTES)(sent)
        except grpc.aio.AioRpcError as error:
            caught = error
    assert caught.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "no message of this call" in (caught.details() or "")
    assert metric.total("penstock_requests_total", outcome="failed") == before + 1


async def test_bytes_that_are_no_message_end_a_stream_of_messages_too(nats_url: str) -> None:
    async with gateway(nats_url) as running:
        path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        call = running.channel.stream_stream(path, *AS_BYTES)(iter([b"\xff" * 40]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.thorough
async def test_each_of_very_many_calls_at_once_ends_with_a_status_of_ours(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url, max_sessions=1) as running:
        patient = changed(ttft_deadline_ms=CROWD_MS, deadline_ms=CROWD_MS)
        first = asyncio.create_task(generate(running.stub, patient, timeout_s=CROWD_MS / 1000))
        envelope, _ = await peers.placed()
        answers = await asyncio.gather(*(generate(running.stub, ask()) for _ in range(CROWD)))
        codes = Counter(answer.status for answer in answers)
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        assert (await first).status is grpc.StatusCode.OK
    assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED: CROWD}


async def test_a_connection_above_the_limit_is_closed_and_the_others_serve_on(nats_url: str) -> None:
    async with gateway(nats_url, grpc_max_connections=1) as running:
        await running.stub.ListModels(pb.ListModelsRequest())
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(running.server.address, options=options) as another:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await rpc.InferenceStub(another).ListModels(pb.ListModelsRequest(), timeout=20)
        await running.stub.ListModels(pb.ListModelsRequest())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
