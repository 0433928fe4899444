"""A shed request is told when to come back as gRPC tells it, and is counted by hop and reason."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import Overloaded
from shared.messages import Message, Prefill, Reserve, Tokenize
from tests.integration.gateway_peers import Answer as PeerAnswer
from tests.integration.gateway_peers import Running, ask, default_answer, fleet, gateway, tokenized
from tests.support import metric
from tests.support.client import generate
from tests.support.wait import until

ROLES = ("tokenizer", "prefill", "decode", "detokenizer")


async def knows_all(running: Running) -> None:
    for role in ROLES:
        await running.knows(role, 1)


def within(milliseconds: int) -> pb.GenerateRequest:
    message = ask("hello")
    message.ttft_deadline_ms = milliseconds
    return message


async def failure(running: Running, message: pb.GenerateRequest) -> grpc.aio.AioRpcError:
    """What ended the call, as a client sees it."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in running.stub.Generate(message):
            pass
    assert isinstance(caught.value, grpc.aio.AioRpcError)
    return caught.value


def details(error: grpc.aio.AioRpcError) -> list[bytes]:
    metadata: Any = error.trailing_metadata()  # the stubs have it wrong
    return [value for key, value in metadata if key == "grpc-status-details-bin"]


async def test_a_shed_call_carries_retry_info_in_its_status(nats_url: str) -> None:
    async with fleet(nats_url, "tokenizer", "decode", "detokenizer") as peers, gateway(nats_url) as running:
        await peers.add("prefill", queued_tokens=100_000, tokens_per_s=1000.0)
        await knows_all(running)
        error = await failure(running, within(500))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    (packed,) = details(error)
    status = Status.FromString(packed)
    assert (status.code, status.message) == (error.code().value[0], error.details())
    retry = RetryInfo()
    assert status.details[0].Unpack(retry)
    assert 99_000 < retry.retry_delay.ToMilliseconds() < 100_000


async def test_a_call_that_a_retry_does_not_help_carries_none(nats_url: str) -> None:
    async with fleet(nats_url), gateway(nats_url) as running:
        error = await failure(running, pb.GenerateRequest())
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details(error) == []


async def test_a_prompt_that_no_worker_can_compute_in_time_expires_before_any_work(nats_url: str) -> None:
    async with fleet(nats_url, "tokenizer", "decode", "detokenizer") as peers, gateway(nats_url) as running:
        prefill = await peers.add("prefill", tokens_per_s=1.0, best_tokens_per_s=1.0)
        await knows_all(running)
        answer = await generate(running.stub, within(2000))  # five tokens
        assert not prefill.of(Prefill)
        assert not peers["decode-0"].of(Reserve)
    assert (answer.outcome, answer.status) == ("expired", grpc.StatusCode.DEADLINE_EXCEEDED)
    assert answer.end is not None
    assert (answer.end.error.hop, answer.end.error.retry_after_ms) == ("prefill", 0)
    assert "allow a longer ttft_deadline_ms" in answer.end.error.message


class Counted:
    """How often a request was shed at `hop` for `reason` since this was made."""

    def __init__(self, hop: str, reason: str) -> None:
        self._labels = {"hop": hop, "reason": reason}
        self._before = metric.value("penstock_shed_total", **self._labels)

    async def once(self) -> None:
        await until(lambda: metric.value("penstock_shed_total", **self._labels) == self._before + 1)


async def test_a_gateway_without_a_session_left_counts_that(nats_url: str) -> None:
    counted = Counted("gateway", "sessions")
    async with fleet(nats_url) as peers, gateway(nats_url, max_sessions=1) as running:
        call = running.stub.Generate(ask("hello"))
        await peers.placed()
        assert (await generate(running.stub, ask("hello"))).outcome == "shed"
        call.cancel()
        await counted.once()


async def test_a_wait_for_decode_that_is_too_long_is_counted(nats_url: str) -> None:
    counted = Counted("decode", "wait")
    async with fleet(nats_url, "tokenizer", "prefill", "detokenizer") as peers, gateway(nats_url) as running:
        await peers.add("decode", capacity=1, live=1)
        await knows_all(running)
        running.registry._context.admission_queue._gaps_s.append(50.0)
        assert (await generate(running.stub, within(5000))).outcome == "shed"
        await counted.once()


async def test_who_finds_the_queue_too_long_after_its_front_half_is_shed_and_not_placed(
    nats_url: str,
) -> None:
    async with fleet(nats_url, "tokenizer", "prefill", "detokenizer") as peers, gateway(nats_url) as running:
        decode = await peers.add("decode", capacity=1)
        await knows_all(running)
        peers["tokenizer-0"].answers = lambda _: None
        call = asyncio.create_task(generate(running.stub, within(20_000)))
        await until(lambda: peers["tokenizer-0"].of(Tokenize))
        running.registry._context.admission_queue._gaps_s.append(50.0)
        decode.say(live=1)
        await until(lambda: running.fleet.instances("decode")[0].heartbeat.live == 1)
        envelope, message = peers["tokenizer-0"].of(Tokenize)[0]
        assert isinstance(message, Tokenize)
        await peers.bus.reply(envelope, tokenized(message))
        assert (await call).outcome == "shed"
        assert not decode.of(Reserve)


async def test_a_predicted_first_token_that_is_too_late_is_counted(nats_url: str) -> None:
    counted = Counted("prefill", "ttft")
    async with fleet(nats_url, "tokenizer", "decode", "detokenizer") as peers, gateway(nats_url) as running:
        await peers.add("prefill", queued_tokens=100_000, tokens_per_s=1000.0)
        await knows_all(running)
        assert (await generate(running.stub, within(500))).outcome == "shed"
        await counted.once()


@pytest.mark.thorough(but="decode-Reserve")
@pytest.mark.parametrize(
    ("role", "kind"), [("tokenizer", Tokenize), ("prefill", Prefill), ("decode", Reserve)]
)
async def test_a_service_that_is_full_is_counted_by_its_name(
    nats_url: str, role: str, kind: type[Message]
) -> None:
    counted = Counted(role, "full")

    def full(message: Message) -> PeerAnswer:
        refuses = isinstance(message, kind)
        return Overloaded("no room", hop=role, retry_after_ms=120_000) if refuses else default_answer(message)

    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await knows_all(running)
        peers[f"{role}-0"].answers = full
        assert (await generate(running.stub, ask("hello"))).outcome == "shed"
        await counted.once()


async def test_a_hop_that_is_no_service_is_counted_as_unknown(nats_url: str) -> None:
    counted = Counted("unknown", "full")
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await knows_all(running)
        peers["tokenizer-0"].answers = lambda _: Overloaded("no room", hop="made up by somebody")
        assert (await generate(running.stub, ask("hello"))).outcome == "shed"
        await counted.once()


async def test_a_request_that_comes_to_a_draining_gateway_is_counted(nats_url: str) -> None:
    counted = Counted("gateway", "drain")
    async with fleet(nats_url), gateway(nats_url) as running:
        running.registry.drain_gate.closing = True
        answer = await generate(running.stub, ask("hello"))
        await counted.once()
    assert answer.status is grpc.StatusCode.UNAVAILABLE
