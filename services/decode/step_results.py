"""Take the results of steps: tokens and scores go out, drafts and the book follow, what has ended ends."""

from __future__ import annotations

from collections.abc import Sequence

from services.decode.admission import Lose
from services.decode.book import DecodeBook
from services.decode.drafting import Drafting
from services.decode.driver import DecodeDriver
from services.decode.hand_overs import HandOvers
from services.decode.job import DecodeJob
from services.decode.job_ends import JobEnds
from services.decode.output import job_output
from services.decode.pace import DecodePace
from shared.engine import StepResult, TokenOutput
from shared.errors import PenstockError
from shared.seams.clock import SYSTEM_CLOCK
from shared.telemetry import metrics
from shared.worker.job import JobPhase
from shared.worker.marks import StepCost
from shared.worker.outbox import Outbox
from shared.worker.prompt_progress import record_progress
from shared.worker.rate import TokenRate

IN_BATCH = (JobPhase.COMPUTING, JobPhase.DECODING)
"""The phases of a job that a step was about."""


class StepResults:
    def __init__(
        self,
        book: DecodeBook,
        outbox: Outbox,
        driver: DecodeDriver,
        drafting: Drafting,
        hand_overs: HandOvers,
        ends: JobEnds,
        pace: DecodePace,
        rate: TokenRate,
        lose: Lose,
    ) -> None:
        self._book = book
        self._outbox = outbox
        self._driver = driver
        self._drafting = drafting
        self._hand_overs = hand_overs
        self._ends = ends
        self._pace = pace
        self._rate = rate
        self._lose = lose

    async def take(self, result: StepResult) -> None:
        """A job that failed ("error") tells so with its last tokens, and so behind them; like every finished
        job it holds nothing here any more. One whose grammar failed says what is wrong with that."""
        cost, kv_bytes = StepCost.of(result, self._driver.engine), self._driver.kv_bytes
        record_progress(self._book.jobs, result, cost)
        await self._send_scores(result)
        outputs: list[tuple[DecodeJob, TokenOutput]] = []
        faults: list[tuple[DecodeJob, PenstockError]] = []
        num_tokens, jobs = 0, self._book.jobs
        for output in result.outputs:
            job = jobs.get(output.key)
            if job is None or job.phase not in IN_BATCH:
                continue
            if output.fault is not None:
                faults.append((job, output.fault))
                continue
            outputs.append((job, output))
            num_tokens += len(output.token_ids)
        now_s = SYSTEM_CLOCK.monotonic_s()
        await self._outbox.tokens([job_output(job, output, now_s, cost, kv_bytes) for job, output in outputs])
        self._go_on(outputs, now_s)
        for key in result.preempted_keys:
            if (given_way := self._book.jobs.get(key)) is not None:
                given_way.waits_for_blocks = True
        for job, fault in faults:
            await self._lose(job, fault)
        self._drafting.count(output for _, output in outputs)
        self._measure(result, num_tokens)

    def _go_on(self, outputs: Sequence[tuple[DecodeJob, TokenOutput]], now_s: float) -> None:
        """The tokens are told; jobs end with their last ones."""
        drafts = len(self._drafting.book) > 0
        for job, output in outputs:
            job.last_token_s = now_s
            if output.finish_reason is not None:
                self._hand_overs.end(job, finish=output.finish_reason)
                self._ends.end_finished(job)
                continue
            if job.phase is JobPhase.COMPUTING:
                job.phase = JobPhase.DECODING
                self._drafting.open_draft(job)
                drafts = True
            job.waits_for_blocks = False
            if job.num_outputs >= job.recount_at:
                self._book.grow(job)
            if drafts:
                self._drafting.advance(output)

    def _measure(self, result: StepResult, num_tokens: int) -> None:
        if result.batch_tokens:  # else draws that had waited for masks
            self._rate.observe(num_tokens, result.step_us)
        self._pace.observe_step(result)
        self._drafting.book.step_us = self._pace.plain_step_us
        self._drafting.book.prices = result.draft_prices or self._drafting.book.prices
        if result.preempted_keys or result.mask_waits or result.num_resting:
            metrics.PREEMPTIONS.inc(len(result.preempted_keys))
            metrics.MASK_WAITS.inc(result.mask_waits)
            metrics.RESTS.inc(result.num_resting)
        if not self._book.has_in_phase(JobPhase.DECODING):
            self._pace.forget_steps()

    async def _send_scores(self, result: StepResult) -> None:
        for scores in result.prompt_scores:
            job = self._book.jobs.get(scores.key)
            if job is not None and job.phase in IN_BATCH:
                await self._outbox.prompt_scores(job.gateway, job.request_id, job.epoch, scores)
