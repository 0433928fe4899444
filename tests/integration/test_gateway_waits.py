"""What a session waits for: a row that may be lost, the next token in its time."""

from __future__ import annotations

import asyncio
from functools import partial

import grpc

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.session.session import Session
from shared.bus import Delivery
from shared.messages import HoldReport, LivenessCheck, Message, Prefill, Reserve
from tests.integration.gateway_peers import Answer, ask, default_answer, fleet, gateway
from tests.support.client import generate
from tests.support.wait import until

# ---- a row that was lost ----


def let_go(message: Message) -> Answer:
    return HoldReport(held=False) if isinstance(message, LivenessCheck) else default_answer(message)


async def test_a_request_that_nobody_holds_and_whose_only_row_was_lost_is_placed_anew(nats_url: str) -> None:
    """Its TTFT deadline is a minute away."""
    async with fleet(nats_url) as peers, gateway(nats_url, liveness_check_s=0.05) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello", max_tokens=1)))
        envelope, _ = await peers.placed()
        peers["decode-0"].answers = let_go
        await peers.placed(epoch=2)
        await peers.text(envelope.request_id, 5, "a", epoch=2, finish="length")
        answer = await call
    assert (answer.outcome, answer.text) == ("finished", "a")


async def test_a_request_that_decode_holds_waits_for_its_first_token(nats_url: str) -> None:
    def held(message: Message) -> Answer:
        return HoldReport(held=True) if isinstance(message, LivenessCheck) else default_answer(message)

    async with fleet(nats_url) as peers, gateway(nats_url, liveness_check_s=0.05) as running:
        peers["decode-0"].answers = held
        call = asyncio.create_task(generate(running.stub, ask("hello", max_tokens=1)))
        envelope, _ = await peers.placed()
        await until(lambda: len(peers["decode-0"].of(LivenessCheck)) >= 3)
        await peers.text(envelope.request_id, 5, "a", finish="length")
        answer = await call
        assert len(peers["prefill-0"].of(Prefill)) == 1
    assert (answer.outcome, answer.text) == ("finished", "a")


async def test_a_last_row_that_comes_behind_the_answer_of_who_let_go_counts(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url, liveness_check_s=0.05) as running:
        call = asyncio.create_task(generate(running.stub, ask("hello", max_tokens=1)))
        envelope, _ = await peers.placed()
        sent: list[asyncio.Task[None]] = []

        def late(delivery: Delivery) -> None:
            peers["decode-0"].receive(delivery)
            if isinstance(delivery.message, LivenessCheck):
                row = peers.text(envelope.request_id, 5, "a", finish="length")
                sent.append(asyncio.create_task(row))

        peers["decode-0"].answers = let_go
        peers["decode-0"].on_message = late
        answer = await call
        await asyncio.gather(*sent)
        assert len(peers["prefill-0"].of(Prefill)) == 1
    assert (answer.outcome, answer.text) == ("finished", "a")


# ---- the deadline from token to token ----


def has_tokens(session: Session, count: int) -> bool:
    return len(session.state.log.ids) == count


def patient(text: str, milliseconds: int) -> pb.GenerateRequest:
    request = ask(text, max_tokens=9)
    request.inter_token_deadline_ms = milliseconds
    return request


async def test_a_stream_whose_next_token_does_not_come_in_time_expires_at_decode(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, patient("hello", 200)))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "ab")
        answer = await call
    assert (answer.outcome, answer.status) == ("expired", grpc.StatusCode.DEADLINE_EXCEEDED)
    assert answer.end is not None
    assert answer.end.error.hop == "decode"
    assert "inter-token" in answer.end.error.message
    assert answer.text == "ab"


async def test_tokens_that_keep_coming_outlast_the_inter_token_deadline_together(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, patient("hello", 20_000)))
        envelope, _ = await peers.placed()
        (session,) = running.registry._live.values()
        ends = []
        for place, letter in enumerate("abcd"):
            await peers.text(envelope.request_id, 5 + place, letter)
            await until(partial(has_tokens, session, place + 1))
            ends.append(session._deadline)
        await peers.text(envelope.request_id, 9, "e", finish="stop")
        answer = await call
    assert (answer.outcome, answer.text) == ("finished", "abcde")
    assert ends == sorted(set(ends))


async def test_the_first_token_does_not_wait_under_the_inter_token_deadline(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, patient("hello", 1)))
        envelope, _ = await peers.placed()
        (session,) = running.registry._live.values()
        assert session._deadline == session.budget.first_token
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        answer = await call
    assert answer.outcome == "finished"


async def test_once_the_last_token_is_there_none_is_waited_for(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, patient("hello", 1)))
        envelope, _ = await peers.placed()
        (session,) = running.registry._live.values()
        await peers.text(envelope.request_id, 5, "a", finish="stop")
        await call
    assert session._deadline == session.budget.total


async def test_a_replacement_ends_with_the_inter_token_deadline(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        call = asyncio.create_task(generate(running.stub, patient("hello", 500)))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "ab")
        await peers.lost(envelope.request_id, 1)
        await peers.placed(epoch=2)
        answer = await call
    assert (answer.outcome, answer.text) == ("expired", "ab")


async def test_decode_hears_how_long_the_client_waits_from_token_to_token(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        for request in (patient("hello", 250), ask("hello")):
            call = asyncio.create_task(generate(running.stub, request))
            await until(lambda: peers["prefill-0"].of(Prefill))
            envelope, _ = peers["prefill-0"].of(Prefill)[-1]
            await peers.placed()
            await peers.text(envelope.request_id, 5, "a", finish="stop")
            await call
            peers["prefill-0"].got.clear()
        told = [m.inter_token_us for _, m in peers["decode-0"].of(Reserve) if isinstance(m, Reserve)]
    assert told == [250_000, 0]
