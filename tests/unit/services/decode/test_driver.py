"""What the decode worker's engine is told of a job."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.decode.ahead.draft_offers import Proposal
from services.decode.driver import MAX_UNTAKEN_REPORTS, DecodeDriver, StepReport
from services.decode.job import DecodeJob, read_job
from shared.deadline import Deadline
from shared.engine import AdmitResult, SamplingParams, StepResult
from shared.engine import engine as engine_module
from shared.engine.core_arbiter import CoreArbiter, WorkClass
from shared.engine.native.library import library
from shared.engine.step_pacer import REMEMBERED_STEPS
from shared.fairness.share import TenantShare
from shared.messages import Envelope, Reserve, pack_ids
from shared.sampling.parameters import Grammar
from shared.worker.drafts.draft_tree import DraftTree
from shared.worker.prefix_mirror import PrefixMirror
from tests.support.clock import FakeClock
from tests.support.engine import make_engine
from tests.support.held_masks import held_masks
from tests.support.sampling import sampling
from tests.support.wait import until

NORMAL, LOW, HIGH = 0, 1, 2  # as penstock.v1.Priority numbers them


def job(request_id: str, priority: int, seconds: float) -> DecodeJob:
    reserve = Reserve(pack_ids([1, 2, 3]), 3, b"", sampling(), "g", "d", "p", "", priority)
    made = read_job(
        Envelope(request_id, 1), reserve, Deadline.after(seconds), vocab_size=10, max_model_len=64
    )
    made.first_tokens = (4,)
    return made


async def ended(driver: DecodeDriver) -> list[StepReport]:
    """All that the engine does until it stops by itself."""
    assert driver._step is not None
    await asyncio.wait_for(asyncio.wait([driver._step]), 60)
    return list(iter(driver.take_report, None))


async def joined(driver: DecodeDriver, *jobs: DecodeJob) -> list[StepReport]:
    """The first reports of a batch with these."""
    driver.admit(jobs, [])
    driver.admit([], jobs)
    await driver.step_on()
    return await ended(driver)


@pytest.fixture
async def driver(model_dir: Path) -> AsyncIterator[DecodeDriver]:
    driver = DecodeDriver("decode-engine", lambda: make_engine(model_dir), PrefixMirror(), lambda: None)
    await driver.load_engine()
    yield driver
    await driver.close_engine()


async def test_a_job_joins_the_batch_with_its_priority_its_deadline_and_its_share(
    driver: DecodeDriver,
) -> None:
    jobs = [job("low", LOW, 30.0), job("normal", NORMAL, 20.0), job("high", HIGH, 40.0)]
    for number, one in enumerate(jobs, start=1):
        one.share = TenantShare(f"tenant {number}", weight=number)
        one.answer_scope = f"scope {number}"
    jobs[2].inter_token_s = 0.05
    admitted = [one for report in await joined(driver, *jobs) for one in report.admitted]
    assert [one.job for one in admitted] == [*jobs, *jobs]
    assert [one.outcome for one in admitted[3:]] == [None, None, None]
    assert [driver.engine._scheduler.sequences[one.key].share for one in jobs] == [one.share for one in jobs]
    sequences = driver.engine._scheduler.sequences
    assert [sequences[one.key].answer_scope for one in jobs] == ["scope 1", "scope 2", "scope 3"]
    assert [sequences[one.key].priority for one in jobs] == [2, 1, 0]
    assert [sequences[one.key].inter_token_us for one in jobs] == [math.inf, math.inf, 50_000]
    assert [sequences[one.key].deadline_us for one in jobs] == [
        round(one.deadline.at_s * 1e6) for one in jobs
    ]


async def test_a_prompt_that_is_computed_here_is_due_by_the_deadline_of_its_first_token(
    driver: DecodeDriver,
) -> None:
    local, silent = job("local", NORMAL, 30.0), job("silent", NORMAL, 30.0)
    for one in (local, silent):
        one.peer, one.first_tokens = "", ()
    local.first_token = Deadline.after(2.0)
    due_us = {}
    admit = driver.engine.admit

    def admitted(key: str, *args: Any, **named: Any) -> AdmitResult:
        due_us[key] = named["first_token_us"]
        return admit(key, *args, **named)

    driver.engine.admit = admitted  # type: ignore[method-assign]
    driver.admit([local, silent], [])
    await driver.step_on()
    await ended(driver)
    assert due_us == {local.key: 1e6 * local.first_token.at_s, silent.key: 1e6 * silent.deadline.at_s}


async def test_a_step_follows_the_last_one_while_the_event_loop_stands_still(driver: DecodeDriver) -> None:
    engine, third = driver.engine, threading.Event()
    step, begun = engine.step, 0

    def counted() -> StepResult:
        nonlocal begun
        begun += 1
        if begun == 3:
            third.set()
        return step()

    engine.step = counted  # type: ignore[method-assign]
    driver.admit([one := job("r", NORMAL, 30.0)], [])
    driver.admit([], [one])
    await driver.step_on()
    assert third.wait(60)  # in the loop's own thread: it can do nothing meanwhile
    await ended(driver)


async def test_an_engine_far_ahead_of_the_loop_waits_for_it(driver: DecodeDriver) -> None:
    assert len(await joined(driver, job("r", NORMAL, 30.0))) == MAX_UNTAKEN_REPORTS
    await driver.step_on()
    assert len(await ended(driver)) == MAX_UNTAKEN_REPORTS


async def test_blocks_given_back_while_steps_run_are_back_before_the_next_step(driver: DecodeDriver) -> None:
    begun, go_on = threading.Event(), threading.Event()
    step = driver.engine.step

    def held() -> StepResult:
        begun.set()
        assert go_on.wait(60)
        return step()

    driver.engine.step = held  # type: ignore[method-assign]
    one, other = job("one", NORMAL, 30.0), job("other", NORMAL, 30.0)
    driver.admit([one, other], [])
    driver.admit([], [one, other])
    await driver.step_on()
    await asyncio.to_thread(begun.wait)
    driver.release_later(one.key)
    go_on.set()
    first, *later = [report.result for report in await ended(driver) if report.result is not None]
    assert [output.key for output in first.outputs] == [one.key, other.key]
    assert {output.key for result in later for output in result.outputs} == {other.key}
    assert one.key not in driver.snapshot.held


async def test_who_asks_for_a_place_hears_before_the_step_that_follows_ends(driver: DecodeDriver) -> None:
    reports = await joined(driver, job("r", NORMAL, 30.0))
    assert (len(reports[0].admitted), reports[0].result) == (2, None)


async def test_a_step_that_fails_is_told_behind_those_that_ended(driver: DecodeDriver) -> None:
    step, done = driver.engine.step, 0

    def fails() -> StepResult:
        nonlocal done
        done += 1
        if done == 3:
            raise ZeroDivisionError
        return step()

    driver.engine.step = fails  # type: ignore[method-assign]
    reports = []
    with pytest.raises(ZeroDivisionError):
        reports += await joined(driver, job("r", NORMAL, 30.0))
    assert driver.faulty


async def test_a_draft_is_verified_as_far_as_the_engine_has_not_come_itself(driver: DecodeDriver) -> None:
    one = job("r", NORMAL, 30.0)
    results = [report.result for report in await joined(driver, one) if report.result is not None]
    decoded = tuple(token for result in results for token in result.outputs[0].token_ids)
    base = len(one.token_ids)
    guesses = (*decoded, 5, 6)
    driver.propose([Proposal(one.key, DraftTree(base, guesses), base)])
    await driver.step_on()
    reports = await ended(driver)
    (use,) = reports[0].draft_uses
    assert (use.key, use.behind, use.late) == (one.key, len(decoded), 0)
    assert reports[0].result is not None
    assert reports[0].result.outputs[0].proposed_drafts == 2


@pytest.mark.parametrize("base_off", [0, 1])
async def test_a_draft_that_guessed_wrong_or_from_beyond_the_end_is_late(
    driver: DecodeDriver, base_off: int
) -> None:
    one = job("r", NORMAL, 30.0)
    results = [report.result for report in await joined(driver, one) if report.result is not None]
    base = len(one.token_ids) + base_off * (len(results) + 1)
    wrong = (results[0].outputs[0].token_ids[0] + 1) % 10
    driver.propose([Proposal(one.key, DraftTree(base, (wrong, 5, 6)), base)])
    await driver.step_on()
    reports = await ended(driver)
    assert [use.late for use in reports[0].draft_uses] == [3]
    assert reports[0].result is not None
    assert reports[0].result.outputs[0].proposed_drafts == 0


async def test_a_driver_that_is_closed_begins_no_further_step(model_dir: Path) -> None:
    driver = DecodeDriver("decode-engine", lambda: make_engine(model_dir), PrefixMirror(), lambda: None)
    await driver.load_engine()
    begun, go_on = threading.Event(), threading.Event()
    step = driver.engine.step

    def held() -> StepResult:
        begun.set()
        assert go_on.wait(60)
        return step()

    driver.engine.step = held  # type: ignore[method-assign]
    one = job("r", NORMAL, 30.0)
    driver.admit([one], [])
    driver.admit([], [one])
    await driver.step_on()
    await asyncio.to_thread(begun.wait)
    closing = asyncio.create_task(driver.close_engine())
    await asyncio.sleep(0)  # it has begun to wait
    go_on.set()
    await asyncio.wait_for(closing, 60)
    assert sum(report.result is not None for report in driver._reports) == 1


@pytest.mark.skipif(library() is None, reason="the kernels were not built, or this CPU cannot run them")
async def test_orders_that_come_in_a_pause_are_carried_out_in_it(
    driver: DecodeDriver, tmp_path: Path
) -> None:
    clock = FakeClock()
    admit = CoreArbiter(WorkClass.DECODE, tmp_path, prompt_weight=2.0, itl_target_s=10.0, clock=clock)
    prompts = CoreArbiter(WorkClass.PREFILL, tmp_path)
    for _ in range(REMEMBERED_STEPS):
        admit.begin_step()
        clock.advance(0.08)
        admit.end_step()
    prompts.begin_step()
    driver.engine.share_cores(admit)
    one, other = job("one", NORMAL, 30.0), job("other", NORMAL, 30.0)
    driver.admit([one], [])
    driver.admit([], [one])
    await driver.step_on()
    await until(driver.take_report)
    await until(lambda: not admit._slots[admit.number].computing)
    driver.admit([other], [])
    await driver.step_on()
    report = await until(driver.take_report)
    assert isinstance(report, StepReport)
    assert [admitted.job for admitted in report.admitted] == [other]
    assert report.result is None  # the clock stands still: there has been no step
    prompts.close()
    assert any(report.result is not None for report in await ended(driver))


async def test_who_comes_while_all_wait_for_masks_is_taken_in_at_once(
    llm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "MASK_WAIT_S", 60.0)
    driver = DecodeDriver("decode-engine", lambda: make_engine(llm_dir), PrefixMirror(), lambda: None)
    await driver.load_engine()
    grammar = Grammar("regex", "[a-z]+")
    slow = SamplingParams(grammar=grammar)
    with held_masks(grammar) as held:
        held.hold()
        await driver.between_steps(lambda engine: engine.admit("slow", [40, 41], 2, slow))
        await driver.step_on()
        await until(lambda: driver.engine.awaits_masks)
        driver.admit([one := job("one", NORMAL, 30.0)], [])
        await driver.step_on()
        await until(lambda: [each for report in driver._reports for each in report.admitted])
        assert [each.job for report in driver._reports for each in report.admitted] == [one]
        assert driver.engine.awaits_masks
        driver._closing = True  # else it would wait on
        driver.engine.rouse()
    await ended(driver)
    await driver.close_engine()
