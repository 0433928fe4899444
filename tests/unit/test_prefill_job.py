"""What the prefill worker makes of a request's priority."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.prefill.compute import PROMPTS_AT_ONCE, Compute
from services.prefill.job import Job, read_job
from services.prefill.queue import DeadlineQueue
from shared.deadline import Deadline
from shared.errors import InvalidRequest
from shared.messages import Envelope, Prefill, pack_ids
from shared.worker.prefix_mirror import PrefixMirror
from tests.unit.engine_support import make_engine, save_random_model
from tests.unit.test_prefill_book import SAMPLING

NORMAL, LOW, HIGH = 0, 1, 2  # as penstock.v1.Priority numbers them


def job(request_id: str, priority: int) -> Job:
    prefill = Prefill(pack_ids([1, 2, 3]), 3, b"", SAMPLING, "g", "d", "decode-0", priority)
    return read_job(
        Envelope(request_id, 1), prefill, Deadline.after(60.0), vocab_size=10, max_model_len=64, now_s=0.0
    )


def test_high_goes_before_normal_and_normal_before_low() -> None:
    queue = DeadlineQueue(max_entries=8, max_tokens=100)
    for name, priority in (("low", LOW), ("normal", NORMAL), ("high", HIGH)):
        queue.push(job(name, priority).entry(), 0.0)
    taken = [queue.take().entry for _ in range(3)]
    assert [entry.key for entry in taken if entry is not None] == ["high/1", "normal/1", "low/1"]


def test_a_priority_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="priority 3"):
        job("r", 3)


async def test_a_short_prompt_joins_the_few_long_ones_that_are_computed(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path)
    compute = Compute(lambda: make_engine(folder, max_batch_tokens=512), PrefixMirror(), lambda: None)
    await compute.open()
    assert compute.room_tokens(8000, PROMPTS_AT_ONCE - 1) == 1
    assert compute.room_tokens(8000, PROMPTS_AT_ONCE) < 0
    assert compute.room_tokens(100, 1) == 412
    await compute.close()
