"""A step that raises, whatever: everybody is told, then the process ends and the launcher starts it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.kept_worker import PREFILL, kept_worker
from tests.integration.workers_harness import WAIT_S
from tests.support.wait import until

pytestmark = pytest.mark.timeout(300)  # the process starts twice, on whatever machine


@pytest.mark.thorough(but="panic-Panic")
@pytest.mark.parametrize(
    ("fault", "name"), [("error", "RuntimeError"), ("panic", "Panic"), ("cancelled", "CancelledError")]
)
async def test_a_failed_step_loses_its_requests_and_its_process_and_the_next_one_works(
    nats_url: str, tmp_path: Path, fault: str, name: str
) -> None:
    async with kept_worker(nats_url, tmp_path, fault) as (worker, first):
        gone: list[tuple[str, str, bool]] = []
        unlucky = worker.edge.new_id()
        stream = worker.edge.streams[unlucky, 1]
        worker.edge.fleet.on_lost(
            lambda _, instance, why: gone.append((instance, why, stream.lost is not None))
        )
        await worker.place(unlucky)
        lost = await worker.edge.lost(unlucky)
        assert (lost.code, lost.hop) == ("engine_fault", "prefill")
        await until(lambda: gone, timeout_s=WAIT_S)
        assert gone[0] == (PREFILL, "stopped", True)  # in order, and after its requests were told
        await worker.until_the_next_life_serves(first)
    said = worker.said()
    assert f"penstock prefill: prefill crashed with {name}; the log has the tracebacks" in said
    assert f"{PREFILL} exited with code 1; starting it again" in said
