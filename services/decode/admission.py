"""Let jobs join the engine: it is asked between two steps, and its answers go to whoever waits for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from services.decode.book import DecodeBook
from services.decode.drafting import Drafting
from services.decode.driver import Admitted, DecodeDriver
from services.decode.job import DecodeJob
from services.decode.job_ends import JobEnds
from services.decode.kv_arrivals import KvArrivals
from shared.bus import Bus
from shared.engine import BLOCK_TOKENS, AdmitResult, Reservation
from shared.errors import PenstockError
from shared.messages import Accepted
from shared.seams.clock import SYSTEM_CLOCK
from shared.telemetry import metrics
from shared.worker.job import JobPhase

Lose = Callable[[DecodeJob, PenstockError], Awaitable[None]]
"""The job cannot go on here: its session hears why."""


class DecodeAdmission:
    def __init__(
        self,
        bus: Bus,
        book: DecodeBook,
        driver: DecodeDriver,
        arrivals: KvArrivals,
        drafting: Drafting,
        ends: JobEnds,
        lose: Lose,
    ) -> None:
        self._bus = bus
        self._book = book
        self._driver = driver
        self._arrivals = arrivals
        self._drafting = drafting
        self._ends = ends
        self._lose = lose

    def ask_engine(self) -> None:
        """Ask for room for new jobs, or have their prompts begun, and for places for those that have KV."""
        queued = self._book.in_phase(JobPhase.QUEUED)
        new = [job for job in queued if not (job.admitting or job.waits_for_grammar)]
        ready = [job for job in self._book.in_phase(JobPhase.READY) if not (job.admitting or job.compiling)]
        if new or ready:
            self._driver.admit(new, ready)
            for job in (*new, *ready):
                job.admitting = True

    async def take_answer(self, admitted: Admitted) -> None:
        """The engine has answered; of a job that has ended meanwhile it has been told to give back all."""
        job, outcome = admitted.job, admitted.outcome
        job.admitting = False
        if self._book.jobs.get(job.key) is not job:
            return
        if isinstance(outcome, PenstockError):
            await self._lose(job, outcome)
        elif isinstance(outcome, Reservation):
            await self._reserved(job, outcome)
        elif isinstance(outcome, AdmitResult):
            await self._begun(job, outcome)
        else:
            self._joined(job)

    async def answer_taken(self, job: DecodeJob) -> None:
        """Once: its prompt will be computed here."""
        if not job.answered:
            job.answered = True
            await self._bus.answer(job.envelope, Accepted(job.computed_tokens))

    async def refuse(self, job: DecodeJob, error: PenstockError) -> bool:
        """The answer to Reserve says what became of a job that the engine has not been asked for; return
        whether it does."""
        if job.phase is not JobPhase.QUEUED or job.answered:
            return False
        job.answered = True
        await self._bus.answer(job.envelope, error, hop="decode")
        return True

    async def _reserved(self, job: DecodeJob, reserved: Reservation) -> None:
        """The blocks are there: let KV come, and say so to whoever asked."""
        try:
            self._arrivals.expect(job, reserved)
        except PenstockError as error:
            self._ends.end(job)
            await self._bus.answer(job.envelope, error, hop="decode")
        else:
            job.answered = True
            await self._bus.answer(job.envelope, Accepted(reserved.num_cached_blocks * BLOCK_TOKENS))

    async def _begun(self, job: DecodeJob, admitted: AdmitResult) -> None:
        """The engine has the prompt, and computes it beside the streams that run."""
        job.phase = JobPhase.COMPUTING
        job.started_s = SYSTEM_CLOCK.monotonic_s()
        job.computed_tokens = admitted.cached_tokens
        metrics.PREFIX_CACHE_QUERIES.inc(len(job.spec.token_ids) // BLOCK_TOKENS)
        metrics.PREFIX_CACHE_HITS.inc(admitted.cached_tokens // BLOCK_TOKENS)
        await self.answer_taken(job)

    def _joined(self, job: DecodeJob) -> None:
        """It has a place in the batch."""
        job.phase = JobPhase.DECODING
        job.queue_us = max(0, round((SYSTEM_CLOCK.monotonic_s() - job.ready_s) * 1e6))
        if job.is_handed_over:
            metrics.HAND_OVER_SECONDS.observe((job.transfer_us + job.queue_us) / 1e6)
        self._drafting.open_draft(job)
