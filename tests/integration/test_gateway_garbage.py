"""Calls leave nothing behind that only the garbage collector finds: it stops every stream while it looks."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import Overloaded
from shared.messages import Message, Prefill, Reserve
from tests.integration.gateway_peers import Answer as PeerAnswer
from tests.integration.gateway_peers import Running, ask, default_answer, fleet, gateway
from tests.integration.test_gateway_shed import knows_all, within
from tests.support.client import generate
from tests.support.wait import until

CALLS = 20


@pytest.fixture
def _kept_garbage() -> Iterator[None]:
    """Whatever the collector finds stays in `gc.garbage`."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield
    gc.set_debug(0)
    gc.enable()
    gc.garbage.clear()


def left_behind() -> Counter[str]:
    """Return the objects of ours that only a collection has found, by type, but for the shells of calls: gRPC
    holds a call in a circle with whoever wants to hear of its end."""
    gc.garbage.clear()
    gc.collect()
    kinds = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage)
    ours = {kind: count for kind, count in kinds.items() if kind.startswith(("services.", "shared."))}
    ours.pop("services.gateway.session.call_sessions.CallSessions", None)
    return Counter(ours)


async def calls(running: Running, message: pb.GenerateRequest, outcome: str) -> None:
    for _ in range(CALLS):
        assert (await generate(running.stub, message)).outcome == outcome
    await until(lambda: not running.registry.live_count)


@pytest.mark.usefixtures("_kept_garbage")
async def test_a_shed_call_leaves_nothing_to_collect(nats_url: str) -> None:
    async with fleet(nats_url, "tokenizer", "decode", "detokenizer") as peers, gateway(nats_url) as running:
        await peers.add("prefill", queued_tokens=100_000, tokens_per_s=1000.0)
        await knows_all(running)
        await calls(running, within(5000), "shed")
        left_behind()
        await calls(running, within(5000), "shed")
        assert not left_behind()


@pytest.mark.thorough
@pytest.mark.usefixtures("_kept_garbage")
async def test_a_call_that_workers_refuse_leaves_nothing_to_collect(nats_url: str) -> None:
    def full(message: Message) -> PeerAnswer:
        return (
            Overloaded("full", retry_after_ms=60_000)
            if isinstance(message, Reserve)
            else default_answer(message)
        )

    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        peers["decode-0"].answers = full
        await knows_all(running)
        left_behind()
        await calls(running, within(5000), "shed")
        assert not left_behind()


@pytest.mark.usefixtures("_kept_garbage")
async def test_an_answered_call_leaves_nothing_to_collect(nats_url: str) -> None:
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        await knows_all(running)
        left_behind()
        for number in range(CALLS):
            call = asyncio.create_task(generate(running.stub, ask("hello", max_tokens=2)))
            await until(lambda: len(peers["prefill-0"].of(Prefill)) > number)  # noqa: B023 - waited for here
            envelope, _ = peers["prefill-0"].of(Prefill)[-1]
            await peers.text(envelope.request_id, 5, "ab", finish="length")
            assert (await call).outcome == "finished"
        await until(lambda: not running.registry.live_count)
        assert not left_behind()
