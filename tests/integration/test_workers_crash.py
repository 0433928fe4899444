"""A step that raises, whatever: everybody is told, then the process ends and the launcher starts it again."""

from __future__ import annotations

from pathlib import Path

import pytest

<<<<<<< HEAD
from tests.integration.kept_worker import PREFILL, kept_worker
from tests.integration.workers_harness import WAIT_S
=======
from services.prefill.actor import PrefillActor
from services.prefill.config import PrefillConfig
from shared.bus.bulk import BulkConnection
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.engine import Engine, StepResult
from shared.errors import Unavailable
from shared.kv.callbacks import OnFailed, OnReleased
from shared.kv.sender import KvSender
from shared.service import Service
from shared.worker.config import build_engine
from shared.worker.host import keep_informed
from shared.worker.prefix_mirror import PrefixMirror
from tests.integration.workers_harness import WAIT_S, edge_of
from tests.support.models import target_model
>>>>>>> suite
from tests.support.wait import until

pytestmark = pytest.mark.timeout(300)  # the process starts twice, on whatever machine


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
        assert (lost.code, lost.hop) == ("internal", "prefill")
<<<<<<< HEAD
        await until(lambda: gone, timeout_s=WAIT_S)
        assert gone[0] == (PREFILL, "stopped", True)  # in order, and after its requests were told
        await worker.until_the_next_life_serves(first)
    said = worker.said()
    assert f"penstock prefill: prefill crashed with {name}; the log has the tracebacks" in said
    assert f"{PREFILL} exited with code 1; starting it again" in said
=======

        async def taken() -> bool:
            try:
                await edge.prefill(lucky, PROMPT, prefill=PREFILL)
            except Unavailable:  # the crashed actor tells its last before the next one is there: "ask again"
                return False
            return True

        await until(taken, timeout_s=WAIT_S)
        await until(lambda: edge.streams[lucky, 1].ids, timeout_s=WAIT_S)
        await edge.cancel("prefill", PREFILL, lucky)
        await edge.until_idle(PREFILL)
    assert FailsOnce.lives == 2
>>>>>>> suite
