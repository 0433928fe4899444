"""Requests that are the same and in flight at one time: one computation, a stream for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.messages import Mark, Prefill, Reserve, unpack_ids
from tests.integration.gateway_peers import Running, ask, fleet, gateway
from tests.support import metric
from tests.support.client import Answer, generate
from tests.support.wait import until

COALESCED = "penstock_coalesced_requests_total"


def start(
    running: Running, message: pb.GenerateRequest | None = None, **options: object
) -> asyncio.Task[Answer]:
    message = ask(temperature=0.0, max_tokens=4) if message is None else message
    return asyncio.create_task(generate(running.stub, message, **options))  # type: ignore[arg-type]  # its own


async def joined(running: Running, count: int) -> None:
    """Wait until so many follow."""
    await until(lambda: len(followers(running)) == count)


def followers(running: Running) -> list[str]:
    return [held.request_id for held in running.registry.audit().held if held.phase == "shared"]


async def test_the_same_request_is_computed_once_and_streams_to_each_caller(nats_url: str) -> None:
    before = metric.value(COALESCED, model="test-model")
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        first = start(running)
        envelope, _ = await peers.placed()
        others = [start(running) for _ in range(3)]
        await joined(running, 3)
        await peers.text(envelope.request_id, 5, "ab")
        await peers.text(
            envelope.request_id, 7, "cd", finish="length", marks=(Mark("count:draft_proposed", 2),)
        )
        answers = [await call for call in (first, *others)]
        assert len(peers["prefill-0"].of(Prefill)) == 1
    assert {(a.text, tuple(a.positions), a.outcome, a.finish_reason) for a in answers} == {
        ("abcd", (5, 6, 7, 8), "finished", "length")
    }
    prompts = [answer.prompt for answer in answers if answer.prompt is not None]
    assert len({prompt.request_id for prompt in prompts}) == 4
    assert [prompt.coalesced_with for prompt in prompts] == ["", *[envelope.request_id] * 3]
    usages = [answer.end.usage for answer in answers if answer.end is not None]
    assert [usage.coalesced_tokens for usage in usages] == [0, 4, 4, 4]
    assert [usage.draft_tokens for usage in usages] == [2, 0, 0, 0]
    assert {(u.prompt_tokens, u.completion_tokens, u.cached_tokens) for u in usages} == {(5, 4, 3)}
    for answer in answers:
        assert answer.end is not None
        timeline = answer.end.timeline
        assert sum(phase.duration_us for phase in timeline.phases) == timeline.total_us
        assert ("shared" in {phase.name for phase in timeline.phases}) == bool(
            answer.end.usage.coalesced_tokens
        )
    assert metric.value(COALESCED, model="test-model") == before + 3


async def test_who_comes_late_gets_at_once_what_is_there_and_then_follows(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        first = running.stub.Generate(ask(temperature=0.0, max_tokens=4))
        envelope, _ = await peers.placed()
        await peers.text(envelope.request_id, 5, "a")
        await peers.text(envelope.request_id, 6, "b")
        events = aiter(first)
        text = ""
        while text != "ab":
            text += (await anext(events)).text.text
        late = start(running)
        await joined(running, 1)
        await peers.text(envelope.request_id, 7, "cd", finish="length")
        answer = await late
        first.cancel()
    assert (answer.text, answer.deltas[0][:2], answer.positions) == ("abcd", "ab", [5, 6, 7, 8])


async def test_the_first_caller_leaves_and_cancels_nobody_else(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        first = start(running)
        envelope, _ = await peers.placed()
        other = start(running)
        await joined(running, 1)
        await peers.text(envelope.request_id, 5, "ab")
        response = await running.stub.Cancel(pb.CancelRequest(request_id=envelope.request_id))
        left = await first
        await peers.text(envelope.request_id, 7, "cd", finish="length")
        answer = await other
        assert peers.cancels() == {}
        assert len(peers["prefill-0"].of(Prefill)) == 1
    assert response.found
    assert (left.outcome, left.status, left.ends) == ("cancelled", grpc.StatusCode.CANCELLED, 1)
    assert (answer.text, answer.outcome) == ("abcd", "finished")


async def test_the_last_one_that_leaves_cancels_the_computation(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        first = start(running)
        envelope, _ = await peers.placed()
        other = start(running)
        await joined(running, 1)
        await running.stub.Cancel(pb.CancelRequest(request_id=envelope.request_id))
        assert (await first).outcome == "cancelled"
        assert peers.cancels() == {}
        other.cancel()
        await until(lambda: not running.registry.audit().held)
        assert set(peers.cancels()) == {"decode-0", "prefill-0", "detokenizer-0"}
        assert {epoch for told in peers.cancels().values() for epoch, _ in told} == {envelope.epoch}


async def test_a_follower_that_leaves_is_missed_by_nobody(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        first = start(running)
        envelope, _ = await peers.placed()
        follower = start(running)
        await joined(running, 1)
        follower.cancel()
        await joined(running, 0)
        await peers.text(envelope.request_id, 5, "abcd", finish="length")
        answer = await first
        assert peers.cancels() == {}
    assert (answer.text, answer.outcome) == ("abcd", "finished")


async def test_where_the_first_one_ends_by_itself_another_goes_on_from_there_for_all(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        first = start(running)
        envelope, _ = await peers.placed()
        others = [start(running) for _ in range(2)]
        await joined(running, 2)
        await peers.text(envelope.request_id, 5, "ab")
        await peers.lost(envelope.request_id, envelope.epoch, code="stream_taken_over")
        assert (await first).outcome == "cancelled"
        await until(lambda: len(peers["prefill-0"].of(Prefill)) == 2)
        again, prefill = peers["prefill-0"].of(Prefill)[1]
        assert isinstance(prefill, Prefill)
        assert unpack_ids(prefill.token_ids) == [ord(c) for c in "helloab"]
        await joined(running, 1)
        await peers.text(again.request_id, 7, "cd", finish="length")
        answers = [await other for other in others]
        assert len(peers["decode-0"].of(Reserve)) == 2
    assert {(answer.text, answer.outcome, answer.ends) for answer in answers} == {("abcd", "finished", 1)}


async def test_a_computation_that_fails_fails_for_each(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url, max_replacements=0) as running:
        calls = [start(running)]
        envelope, _ = await peers.placed()
        calls += [start(running) for _ in range(2)]
        await joined(running, 2)
        await peers.lost(envelope.request_id, envelope.epoch)
        answers = [await call for call in calls]
        assert len(peers["prefill-0"].of(Prefill)) == 1
    assert {(a.outcome, a.status) for a in answers} == {("failed", grpc.StatusCode.UNAVAILABLE)}


def seeded() -> pb.GenerateRequest:
    return ask(temperature=0.5, seed=1, max_tokens=4)


def other_seed() -> pb.GenerateRequest:
    return ask(temperature=0.5, seed=2, max_tokens=4)


def several() -> pb.GenerateRequest:
    message = seeded()
    message.n = 2
    return message


def resumable() -> pb.GenerateRequest:
    message = seeded()
    message.resumable = True
    return message


def drawn() -> pb.GenerateRequest:
    return ask(temperature=0.5, max_tokens=4)


@pytest.mark.thorough(but="options0-other_seed-2 | options3-drawn-2")
@pytest.mark.parametrize(
    ("options", "make", "placements"),
    [
        ({}, other_seed, 2),
        ({}, several, 3),
        ({}, resumable, 2),
        ({}, drawn, 2),
        ({"coalesce": False}, seeded, 2),
    ],
)
async def test_what_is_not_the_same_is_computed_by_itself(
    nats_url: str,
    options: dict[str, object],
    make: Callable[[], pb.GenerateRequest],
    placements: int,
) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url, **options) as running:
        calls = [start(running, seeded())]
        await peers.placed()
        calls.append(start(running, make()))
        await until(lambda: len(peers["prefill-0"].of(Prefill)) == placements)
        for call in calls:
            call.cancel()
