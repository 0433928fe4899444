"""A worker whose engine hangs, as a real process that the launcher keeps: red, ended, started again."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from shared.messages import Heartbeat
from tests.integration.kept_worker import PREFILL, kept_worker
from tests.integration.workers_harness import WAIT_S
from tests.support.wait import until

LIMIT_S = 1.0
pytestmark = pytest.mark.timeout(300)  # the process starts twice, on whatever machine


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_an_engine_that_hangs_turns_its_process_red_and_ends_it_and_the_next_life_serves(
    nats_url: str, tmp_path: Path
) -> None:
    async with kept_worker(nats_url, tmp_path, "hang", PENSTOCK_WATCHDOG_S=str(LIMIT_S)) as (worker, first):
        assert (first.stalled_ms, get(first.metrics, "/live")) == (0, (200, "live\n"))
        lost: list[tuple[str, str]] = []
        worker.edge.fleet.on_lost(lambda _, instance, why: lost.append((instance, why)))
        await worker.place(worker.edge.new_id())

        def stalled() -> Heartbeat | None:
            beat = worker.heartbeat()
            return beat if beat is not None and beat.state == "stalled" else None

        beat = await until(stalled, timeout_s=WAIT_S)
        assert isinstance(beat, Heartbeat)
        assert beat.stalled_ms >= LIMIT_S * 1e3
        assert lost == [(PREFILL, "suspect")]
        for path in ("/live", "/ready"):
            status, why = await asyncio.to_thread(get, first.metrics, path)
            assert status == 503
            assert why.startswith("the engine (prefill-engine) has not moved for ")
        await worker.until_the_next_life_serves(first)
        await until(lambda: (beat := worker.heartbeat()) and beat.steps, timeout_s=WAIT_S)
    assert f"{PREFILL} exited with code 1; starting it again" in worker.said()
    hung = worker.event("hung")
    assert hung["what"] == "the engine (prefill-engine)"
    assert any("faulty_prefill" in call for calls in hung["stacks"].values() for call in calls)
