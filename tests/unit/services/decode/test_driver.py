"""What the decode worker's engine is told of a job."""

from __future__ import annotations

from pathlib import Path

from services.decode.driver import DecodeDriver
from services.decode.job import DecodeJob, read_job
from shared.deadline import Deadline
from shared.messages import Envelope, Reserve, pack_ids
from shared.worker.prefix_mirror import PrefixMirror
from tests.support.engine import make_engine, save_random_model
from tests.support.sampling import sampling

NORMAL, LOW, HIGH = 0, 1, 2  # as penstock.v1.Priority numbers them


def job(request_id: str, priority: int, seconds: float) -> DecodeJob:
    reserve = Reserve(pack_ids([1, 2, 3]), 3, b"", sampling(), "g", "d", "p", "", priority)
    made = read_job(
        Envelope(request_id, 1), reserve, Deadline.after(seconds), vocab_size=10, max_model_len=64
    )
    made.first_tokens = (4,)
    return made


async def test_a_job_joins_the_batch_with_its_priority_and_its_deadline(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path)
    driver = DecodeDriver("decode-engine", lambda: make_engine(folder), PrefixMirror(), lambda: None)
    await driver.load_engine()
    jobs = [job("low", LOW, 30.0), job("normal", NORMAL, 20.0), job("high", HIGH, 40.0)]
    await driver.seat(jobs, [])
    assert (await driver.seat([], jobs)).attached == [None, None, None]
    sequences = driver.engine._scheduler.sequences
    assert [sequences[one.key].priority for one in jobs] == [2, 1, 0]
    assert [sequences[one.key].deadline_us for one in jobs] == [
        round(one.deadline.at_s * 1e6) for one in jobs
    ]
    await driver.close_engine()
