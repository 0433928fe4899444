"""What the prefill worker makes of a request's priority."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.prefill.book import PrefillBook
from services.prefill.config import PrefillConfig
from services.prefill.driver import PROMPTS_AT_ONCE, PrefillDriver
from services.prefill.job import PrefillJob, read_job
from services.prefill.queue import DeadlineQueue
from shared.deadline import Deadline
from shared.engine import AdmitResult
from shared.errors import InvalidRequest
from shared.fairness.share import TenantShare
from shared.messages import Envelope, Prefill, pack_ids
from shared.worker.job import JobPhase
from shared.worker.prefix_mirror import PrefixMirror
from tests.support.engine import make_engine
from tests.support.sampling import sampling

NORMAL, LOW, HIGH = 0, 1, 2  # as penstock.v1.Priority numbers them


def job(request_id: str, priority: int) -> PrefillJob:
    prefill = Prefill(pack_ids([1, 2, 3]), 3, b"", sampling(), "g", "d", "decode-0", priority)
    return read_job(
        Envelope(request_id, 1), prefill, Deadline.after(60.0), vocab_size=10, max_model_len=64, now_s=0.0
    )


def test_high_goes_before_normal_and_normal_before_low() -> None:
    queue = DeadlineQueue(max_entries=8, max_tokens=100)
    for name, priority in (("low", LOW), ("normal", NORMAL), ("high", HIGH)):
        queue.push(job(name, priority).entry(), 0.0)
    taken = [queue.take_entry().entry for _ in range(3)]
    assert [entry.key for entry in taken if entry is not None] == ["high/1", "normal/1", "low/1"]


def test_a_priority_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="priority 3"):
        job("r", 3)


def computing(*priorities: int) -> PrefillBook:
    jobs = PrefillBook(PrefillConfig(), lambda _: True)
    for number, priority in enumerate(priorities):
        jobs.add(job(f"r{number}", priority), 0.0)
    for one in jobs.take_jobs(1000)[0]:
        one.phase = JobPhase.COMPUTING
    return jobs


@pytest.mark.parametrize(("priority", "ahead"), [(LOW, 3), (NORMAL, 2), (HIGH, 1)])
def test_only_prompts_of_its_class_or_above_are_ahead_of_the_next_one(priority: int, ahead: int) -> None:
    jobs = computing(LOW, NORMAL, HIGH)
    jobs.add(job("next", priority), 0.0)
    assert jobs.prompts_ahead == ahead


def test_a_prompt_that_was_stopped_makes_place_for_another() -> None:
    jobs = computing(NORMAL, NORMAL)
    jobs.jobs["r0/1"].phase = JobPhase.STOPPING
    assert jobs.prompts_ahead == 1


def test_jobs_that_the_engine_has_no_room_for_wait_in_their_order() -> None:
    jobs = PrefillBook(PrefillConfig(), lambda _: True)
    for name in "abc":
        jobs.add(job(name, NORMAL), 0.0)
    taken, _ = jobs.take_jobs(1000)
    for one in taken[1:]:
        jobs.put_back(one)
    assert [one.request_id for one in jobs.take_jobs(1000)[0]] == ["b", "c"]
    assert jobs.queue.queued_tokens == 0


async def test_the_engine_hears_priority_and_deadline_and_each_prompt_stands_alone(model_dir: Path) -> None:
    driver = PrefillDriver(lambda: make_engine(model_dir, max_batch_tokens=64), PrefixMirror(), lambda: None)
    await driver.load_engine()
    jobs = [job("low", LOW), job("low", LOW), job("high", HIGH)]  # the second one's name is taken
    jobs[0].share = TenantShare("t", weight=3)
    first, second, third = await driver.admit(jobs, [lambda *_: None] * 3)
    sequences = driver.engine._scheduler.sequences
    assert isinstance(second, InvalidRequest)
    assert isinstance(first, AdmitResult)
    assert isinstance(third, AdmitResult)
    assert sequences["low/1"].share == jobs[0].share
    assert [(one.priority, one.deadline_us) for one in (sequences["low/1"], sequences["high/1"])] == [
        (2, round(jobs[0].deadline.at_s * 1e6)),
        (0, round(jobs[2].deadline.at_s * 1e6)),
    ]
    await driver.close_engine()


async def test_a_short_prompt_joins_the_few_long_ones_that_are_computed(model_dir: Path) -> None:
    driver = PrefillDriver(lambda: make_engine(model_dir, max_batch_tokens=512), PrefixMirror(), lambda: None)
    await driver.load_engine()
    assert driver.room_tokens(8000, PROMPTS_AT_ONCE - 1) == 1
    assert driver.room_tokens(8000, PROMPTS_AT_ONCE) < 0
    assert driver.room_tokens(100, 1) == 412
    await driver.close_engine()


def test_prompts_are_ordered_by_the_deadline_of_their_first_token() -> None:
    now = Deadline.after(0.0).at_s
    prefill = Prefill(pack_ids([1, 2, 3]), 3, b"", sampling(), "g", "d", "decode-0", NORMAL)
    made = read_job(
        Envelope("r", 1),
        prefill,
        Deadline(now + 60.0),
        Deadline(now + 2.0),
        vocab_size=10,
        max_model_len=64,
        now_s=0.0,
    )
    assert (made.deadline.at_s, made.entry().deadline.at_s) == (now + 60.0, now + 2.0)


async def test_the_engine_orders_by_the_deadline_of_the_first_token(model_dir: Path) -> None:
    driver = PrefillDriver(lambda: make_engine(model_dir, max_batch_tokens=64), PrefixMirror(), lambda: None)
    await driver.load_engine()
    one = job("r", NORMAL)
    one.first_token = Deadline(one.deadline.at_s - 50.0)
    await driver.admit([one], [lambda *_: None])
    assert driver.engine._scheduler.sequences["r/1"].deadline_us == round(one.first_token.at_s * 1e6)
    await driver.close_engine()
