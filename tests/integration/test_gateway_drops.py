"""Calls dropped at any moment: every worker that was asked is told, and nothing is held."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from shared.bus import Delivery
from shared.messages import Cancel, Open, Prefill, Reserve
from tests.integration.gateway_peers import Fleet, ask, fleet, gateway
from tests.support.wait import until

CALLS = 40
LONGEST_S = 0.8


def stream_on_prefill(peers: Fleet) -> set[asyncio.Task[None]]:
    """From now on every accepted Prefill is followed by a stream of rows that has no end of its own."""
    running: set[asyncio.Task[None]] = set()
    prefill = peers["prefill-0"]
    receive = prefill.receive

    async def play(request_id: str, epoch: int) -> None:
        for position in range(5, 200):
            await peers.text(request_id, position, "x", epoch=epoch)
            await asyncio.sleep(0.001)

    def on_message(delivery: Delivery) -> None:
        receive(delivery)
        if isinstance(delivery.message, Prefill):
            task = asyncio.create_task(play(delivery.envelope.request_id, delivery.envelope.epoch))
            running.add(task)
            task.add_done_callback(running.discard)

    prefill.on_message = on_message
    return running


async def test_calls_dropped_at_any_moment_leave_nothing_held(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    moments = random.Random(4)
    async with fleet(nats_url) as peers, gateway(nats_url) as running:
        playing = stream_on_prefill(peers)
        await running.knows("decode", 1)

        async def drop_one() -> None:
            call = running.stub.Generate(ask("hello", max_tokens=1000))
            try:
                async with asyncio.timeout(moments.uniform(0, LONGEST_S)):
                    async for _ in call:
                        pass
            except TimeoutError:
                call.cancel()

        await asyncio.gather(*(drop_one() for _ in range(CALLS)), return_exceptions=True)
        await until(lambda: running.registry.audit().held == ())
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
    for instance, kind in (("decode-0", Reserve), ("prefill-0", Prefill), ("detokenizer-0", Open)):
        asked = {(e.request_id, e.epoch) for e, _ in peers[instance].of(kind)}
        told = {(e.request_id, e.epoch) for e, _ in peers[instance].of(Cancel)}
        assert asked
        assert asked <= told
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
