"""A worker whose engine hangs, as a real process that the launcher keeps: red, ended, started again."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.launcher.instance import Instance, InstanceSpec
from services.launcher.log_lines import LineWriter
from shared.messages import Heartbeat
from tests.integration.workers_harness import WAIT_S, Edge, edge_of
from tests.support.models import target_model
from tests.support.wait import until

PREFILL = "prefill-hang"
PROMPT = list(range(10, 60))
LIMIT_S = 1.0
pytestmark = pytest.mark.timeout(300)  # the process starts twice, on whatever machine


@asynccontextmanager
async def kept(spec: InstanceSpec, log: io.BytesIO) -> AsyncIterator[Instance]:
    """What `penstock up` does with one service."""
    writer = LineWriter(log)
    instance = Instance(spec, writer)
    running = asyncio.create_task(instance.run())
    try:
        yield instance
    finally:
        instance.kill()
        await running
        writer.close()


def heartbeat(edge: Edge) -> Heartbeat | None:
    view = edge.fleet.get("prefill", PREFILL)
    return view.heartbeat if view is not None else None


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
    model = target_model(tmp_path)
    environ = os.environ | {
        "PENSTOCK_NATS_URL": nats_url,
        "PENSTOCK_INSTANCE": PREFILL,
        "PENSTOCK_MODEL": str(model),
        "PENSTOCK_PREFILL_KV_MEMORY_MB": "4",
        "PENSTOCK_WATCHDOG_S": str(LIMIT_S),
        "HANG_ONCE": str(tmp_path / "hung"),
    }
    command = (sys.executable, "-m", "tests.support.hanging_prefill")
    log = io.BytesIO()
    spec = InstanceSpec("prefill", PREFILL, command, environ)
    async with kept(spec, log) as instance, edge_of(nats_url, model.name) as edge:
        await edge.ready(PREFILL)
        instance.ready_pid = instance.pid
        first = heartbeat(edge)
        assert first is not None
        assert (first.stalled_ms, get(first.metrics, "/live")) == (0, (200, "live\n"))
        lost: list[tuple[str, str]] = []
        edge.fleet.on_lost(lambda _, instance, why: lost.append((instance, why)))
        await edge.prefill(edge.new_id(), PROMPT, prefill=PREFILL)

        def stalled() -> Heartbeat | None:
            beat = heartbeat(edge)
            return beat if beat is not None and beat.state == "stalled" else None

        beat = await until(stalled, timeout_s=WAIT_S)
        assert isinstance(beat, Heartbeat)
        assert beat.stalled_ms >= LIMIT_S * 1e3
        assert (PREFILL, "suspect") in lost
        for path in ("/live", "/ready"):
            status, why = await asyncio.to_thread(get, first.metrics, path)
            assert status == 503
            assert why.startswith("the engine (prefill-engine) has not moved for ")
        await until(lambda: instance.restarts, timeout_s=WAIT_S)
        await until(lambda: (beat := heartbeat(edge)) and beat.incarnation != first.incarnation, WAIT_S)
        await edge.ready(PREFILL)
        lucky = edge.new_id()
        await edge.prefill(lucky, PROMPT, prefill=PREFILL)
        await until(lambda: edge.streams[lucky, 1].ids, timeout_s=WAIT_S)
        await until(lambda: (beat := heartbeat(edge)) and beat.steps, timeout_s=WAIT_S)
    said = log.getvalue().decode()
    assert f"{PREFILL} exited with code 1; starting it again" in said
    (hung,) = [json.loads(line.partition(" | ")[2]) for line in said.splitlines() if '"hung"' in line]
    assert hung["what"] == "the engine (prefill-engine)"
    assert any("hanging_prefill" in call for calls in hung["stacks"].values() for call in calls)
