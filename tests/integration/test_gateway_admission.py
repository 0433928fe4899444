"""Requests wait for decode's slots in order, and are spread over those that have some."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.bus import Delivery
from shared.messages import Reserve, Tokenize
from tests.integration.gateway_peers import Fleet, ask, fleet, gateway
from tests.support.client import generate
from tests.support.wait import until


async def finish(peers: Fleet, request_id: str, epoch: int = 1) -> None:
    await peers.text(request_id, 5, "a", epoch=epoch, finish="stop")


async def test_a_request_without_a_slot_waits_its_turn_and_is_not_shed(nats_url: str) -> None:
    async with fleet(nats_url, "tokenizer", "prefill", "detokenizer") as peers, gateway(nats_url) as running:
        decode = await peers.add("decode", capacity=1)
        await running.knows("decode", 1)

        live = 0

        def slot(delivery: Delivery) -> None:
            """As a worker does: no heartbeat between a slot and the word that it is taken."""
            nonlocal live
            if isinstance(delivery.message, Reserve):
                live += 1
                decode.say(live=live)
            decode.receive(delivery)

        decode.on_message = slot
        calls = [asyncio.create_task(generate(running.stub, ask("hello"))) for _ in range(5)]
        await until(lambda: len(running.registry._context.admission_queue) == 4)
        for number in range(1, 6):
            await until(lambda number=number: len(decode.of(Reserve)) == number)  # type: ignore[misc]
            await until(lambda: running.fleet.instances("decode")[0].heartbeat.live == 1)
            assert len(decode.of(Reserve)) == number
            live -= 1
            await finish(peers, decode.of(Reserve)[-1][0].request_id)
            decode.say(live=live)  # the next one may have the slot by now: who ended is free at once
        answers = await asyncio.gather(*calls)
    assert [answer.outcome for answer in answers] == ["finished"] * 5


async def test_the_waiting_go_by_priority(nats_url: str) -> None:
    async with fleet(nats_url, "tokenizer", "prefill", "detokenizer") as peers, gateway(nats_url) as running:
        decode = await peers.add("decode", capacity=1, live=1)
        await running.knows("decode", 1)
        calls = []
        for number, priority in enumerate((pb.PRIORITY_LOW, pb.PRIORITY_NORMAL, pb.PRIORITY_HIGH), start=1):
            request = ask("hello")
            request.priority = priority
            calls.append(asyncio.create_task(generate(running.stub, request)))
            await until(lambda number=number: len(running.registry._context.admission_queue) == number)  # type: ignore[misc]
        for number in range(1, 4):
            decode.say(live=0)
            await until(lambda number=number: len(decode.of(Reserve)) == number)  # type: ignore[misc]
            decode.say(live=1)
            await until(lambda: running.fleet.instances("decode")[0].heartbeat.live == 1)
        placed = [message.priority for _, message in decode.of(Reserve) if isinstance(message, Reserve)]
        for envelope, _ in decode.of(Reserve):
            await finish(peers, envelope.request_id)
        await asyncio.gather(*calls)
    assert placed == [pb.PRIORITY_HIGH, pb.PRIORITY_NORMAL, pb.PRIORITY_LOW]


async def test_who_cannot_have_a_slot_in_time_is_shed_at_once_without_any_work(nats_url: str) -> None:
    async with fleet(nats_url, "tokenizer", "prefill", "detokenizer") as peers, gateway(nats_url) as running:
        await peers.add("decode", capacity=1, live=1)
        await running.knows("decode", 1)
        queue = running.registry._context.admission_queue
        queue._gaps_s.append(50.0)  # a request ends about every 50 s
        request = ask("hello")
        request.ttft_deadline_ms = 5000
        answer = await generate(running.stub, request)
    assert (answer.outcome, answer.status) == ("shed", grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert answer.end is not None
    assert 40_000 < answer.end.error.retry_after_ms < 50_000
    assert not peers["tokenizer-0"].of(Tokenize)


async def test_a_burst_is_spread_over_workers_before_their_heartbeats_tell(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(nats_url, "tokenizer", "prefill", "detokenizer") as peers, gateway(nats_url) as running:
        for number in range(3):
            await peers.add("decode", number, capacity=8)
        await running.knows("decode", 3)
        # None of them tells: they do not count what they take, and the view stays as it is.
        for role in ("tokenizer", "prefill", "detokenizer"):
            await running.knows(role, 1)
        monkeypatch.setattr(running.fleet._state, "observe", lambda _: None)
        monkeypatch.setattr(running.fleet._state, "sweep", lambda: None)
        calls = [asyncio.create_task(generate(running.stub, ask("hello"))) for _ in range(24)]

        def placed() -> list[str]:
            return [peers[f"decode-{n}"].instance for n in range(3) for _ in peers[f"decode-{n}"].of(Reserve)]

        await until(lambda: len(placed()) == 24)
        spread = Counter(placed())
        for number in range(3):
            for envelope, _ in peers[f"decode-{number}"].of(Reserve):
                await finish(peers, envelope.request_id, envelope.epoch)
        await asyncio.gather(*calls)
    assert set(spread.values()) == {8}
