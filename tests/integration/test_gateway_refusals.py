"""A request that was refused can still be cancelled, still expires, and gives everything back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import Overloaded
from shared.messages import Message, Open, Prefill, Reserve
from tests.integration.gateway_peers import Answer, Fleet, Running, ask, default_answer, fleet, gateway
from tests.support.client import generate
from tests.support.wait import until

KINDS: dict[str, type[Message]] = {"decode-0": Reserve, "prefill-0": Prefill, "detokenizer-0": Open}


def refuse(peers: Fleet, instance: str, times: int) -> None:
    """The instance is full for the first routes, and takes the next one."""
    left = times

    def answer(message: Message) -> Answer:
        nonlocal left
        if isinstance(message, KINDS[instance]) and left:
            left -= 1
            return Overloaded("no room")
        return default_answer(message)

    peers[instance].answers = answer


def holding(peers: Fleet, epoch: int) -> Callable[[], bool]:
    """Whether all three were told to let go of `epoch`."""
    return lambda: all(epoch in {e for e, _ in peers.cancels().get(instance, ())} for instance in KINDS)


async def is_idle(running: Running) -> None:
    await until(lambda: not running.registry.audit().held)


@pytest.mark.thorough(but="decode-0")
@pytest.mark.parametrize("instance", sorted(KINDS))
async def test_a_request_that_was_refused_expires_at_its_deadline(nats_url: str, instance: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        refuse(peers, instance, 1)
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        request = ask("hello")
        request.deadline_ms = 1500
        answer = await generate(running.stub, request)
        await until(holding(peers, 2))
        await is_idle(running)
    assert (answer.outcome, answer.status) == ("expired", grpc.StatusCode.DEADLINE_EXCEEDED)
    assert {reason for told in peers.cancels().values() for epoch, reason in told if epoch == 2} == {
        "expired"
    }


async def test_a_request_that_was_refused_is_cancelled_with_its_call(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        refuse(peers, "decode-0", 2)
        call = running.stub.Generate(ask("hello"))
        await peers.placed(epoch=3)
        call.cancel()
        await until(holding(peers, 3))
        await is_idle(running)


async def test_a_cancel_that_meets_a_refusal_is_never_lost(nats_url: str) -> None:
    """A worker that refuses for ever, and clients that leave at every moment of that."""
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        refuse(peers, "decode-0", 1_000_000)
        for number in range(40):
            before = len(peers["decode-0"].of(Reserve))
            call = running.stub.Generate(ask("hello"))
            await until(lambda before=before: len(peers["decode-0"].of(Reserve)) > before)  # type: ignore[misc]
            for _ in range(number):  # a little later in the loop each time
                await asyncio.sleep(0)
            call.cancel()
        await is_idle(running)


async def test_a_stream_that_outlasts_its_first_token_deadline_finishes(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        for role in ("tokenizer", "prefill", "decode", "detokenizer"):
            await running.knows(role, 1)
        request = ask("hello")
        request.ttft_deadline_ms = 300
        call = asyncio.create_task(generate(running.stub, request))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a")
        (session,) = running.registry._live.values()
        await until(session.budget.first_token.expired)
        await peers.text(envelope.request_id, 6, "b", finish="stop")
        answer = await call
    assert (answer.outcome, answer.text) == ("finished", "ab")


async def test_an_error_nobody_expects_ends_the_request_and_gives_everything_back(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:

        def broken(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr("services.gateway.scope.session_state.SessionState.routed", broken)
        answer = await generate(running.stub, ask("hello"))
        await until(holding(peers, 1))
        await is_idle(running)
    assert answer.outcome == "failed"
    assert answer.end is not None
    assert answer.end.outcome == pb.OUTCOME_FAILED


async def test_the_deadline_of_the_first_token_travels_until_that_token_is_out(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        request = ask("hello")
        request.deadline_ms, request.ttft_deadline_ms = 60_000, 5_000
        call = asyncio.create_task(generate(running.stub, request))
        envelope, first = await peers.placed()
        await peers.text(envelope.request_id, 5, "a")
        await peers.lost(envelope.request_id, 1)
        later, second = await peers.placed(epoch=2)
        await peers.text(envelope.request_id, 6, "b", epoch=2, finish="stop")
        await call
    assert 54_000_000 < envelope.deadline_us - first.first_token_us < 56_000_000
    assert abs(later.deadline_us - second.first_token_us) < 1_000_000
