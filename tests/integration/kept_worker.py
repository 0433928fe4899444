"""A prefill worker with a fault, kept as `penstock up` keeps its services; the test plays the gateway."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.launcher.processes.instance import Instance, InstanceSpec
from services.launcher.processes.log_lines import LineWriter
from shared.messages import Heartbeat
from tests.integration.workers_harness import WAIT_S, Edge, edge_of
from tests.support.forked import SharedForker
from tests.support.models import target_model
from tests.support.wait import until

PREFILL = "prefill-faulty"
PROMPT = list(range(10, 60))


@dataclass(slots=True)
class KeptWorker:
    instance: Instance
    edge: Edge
    log: io.BytesIO

    def heartbeat(self) -> Heartbeat | None:
        view = self.edge.fleet.get("prefill", PREFILL)
        return view.heartbeat if view is not None else None

    async def place(self, request_id: str) -> None:
        """A request with which the first life meets its fault."""
        await self.edge.prefill(request_id, PROMPT, prefill=PREFILL)

    async def until_the_next_life_serves(self, first: Heartbeat) -> None:
        """One restart, and a request that gets its first token."""
        await until(lambda: self.instance.restarts, timeout_s=WAIT_S)
        await until(lambda: (beat := self.heartbeat()) and beat.incarnation != first.incarnation, WAIT_S)
        await self.edge.ready(PREFILL)
        lucky = self.edge.new_id()
        await self.place(lucky)
        await until(lambda: self.edge.streams[lucky, 1].ids, timeout_s=WAIT_S)
        await self.edge.cancel("prefill", PREFILL, lucky)
        await self.edge.until_idle(PREFILL)
        assert self.instance.restarts == 1

    def said(self) -> str:
        return self.log.getvalue().decode()

    def event(self, name: str) -> dict[str, Any]:
        """The one such line of its log."""
        (event,) = [
            json.loads(line.partition(" | ")[2]) for line in self.said().splitlines() if f'"{name}"' in line
        ]
        assert isinstance(event, dict)
        return event


@asynccontextmanager
async def kept_worker(
    nats_url: str, folder: Path, fault: str, **environ: str
) -> AsyncIterator[tuple[KeptWorker, Heartbeat]]:
    """The worker and the first ready heartbeat of its first life."""
    model = target_model(folder)
    settings = {
        "PENSTOCK_NATS_URL": nats_url,
        "PENSTOCK_INSTANCE": PREFILL,
        "PENSTOCK_MODEL": str(model),
        "PENSTOCK_PREFILL_KV_MEMORY_MB": "4",
        "FAULT": fault,
        "FAULT_ONCE": str(folder / "fault"),
    }
    module = "tests.support.faulty_prefill"
    command = (sys.executable, "-m", module)
    spec = InstanceSpec("prefill", PREFILL, command, os.environ | settings | environ, module=module)
    log = io.BytesIO()
    writer = LineWriter(log)
    instance = Instance(spec, writer, forker=SharedForker())  # type: ignore[arg-type]  # all that is asked of one
    running = asyncio.create_task(instance.run())
    try:
        async with edge_of(nats_url, model.name) as edge:
            worker = KeptWorker(instance, edge, log)
            await edge.ready(PREFILL)
            instance.mark_ready()
            first = worker.heartbeat()
            assert first is not None
            yield worker, first
    finally:
        instance.kill()
        await running
        writer.close()
