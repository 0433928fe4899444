"""Drives the decode worker's engine: step after step in its thread, without waiting for the event loop.

What the loop wants done (blocks given back, jobs admitted, drafts verified) it leaves in a hand-over that the
engine's thread empties before each step; what a step brought, that thread leaves in another one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.decode.ahead.draft_offers import DraftOffers, DraftUse, Proposal
from services.decode.job import DecodeJob
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.engine import BLOCK_TOKENS, AdmitResult, Engine, KvLoan, Reservation, StepResult
from shared.errors import PenstockError
from shared.worker.driver import EngineDriver, EngineSnapshot
from shared.worker.prefix_mirror import PrefixMirror

MAX_UNTAKEN_REPORTS = 8
"""The most reports, steps for the most part, that the loop has not taken yet; then the engine waits."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The outcome of one job: its reservation, what is known of its prompt where that is computed here, None
    for one that has joined the batch, or why none of these."""

    job: DecodeJob
    outcome: Reservation | AdmitResult | PenstockError | None


@dataclass(frozen=True, slots=True)
class Loaned:
    """KV of a job, by its key, that was lent or left behind when it was halted, or why not."""

    key: str
    outcome: KvLoan | PenstockError


@dataclass(frozen=True, slots=True)
class StepReport:
    """The report of what the engine has done, in this order."""

    admitted: Sequence[Admitted]
    loans: Sequence[Loaned]
    draft_uses: Sequence[DraftUse]
    result: StepResult | None
    snapshot: EngineSnapshot


class DecodeDriver(EngineDriver[None]):
    def __init__(
        self,
        name: str,
        load: Callable[[], Engine],
        mirror: PrefixMirror,
        wake: Callable[[], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(name, load, mirror, wake, clock)
        self._reports: deque[StepReport] = deque()  # that have come to the loop
        self._num_taken = 0  # of all reports; the loop alone writes it
        self._num_reported = 0  # the engine's thread's own, as are the next
        self._admitted: list[Admitted] = []
        self._loans: list[Loaned] = []
        self._draft_offers = DraftOffers()
        self._closing = False
        self._loop: asyncio.AbstractEventLoop

    # ---- on the loop ------------------------------------------------------------------------------

    async def load_engine(self) -> None:
        await super().load_engine()
        self._loop = asyncio.get_running_loop()

    def admit(self, new: Sequence[DecodeJob], ready: Sequence[DecodeJob]) -> None:
        """Reserve, before the next step, blocks for `new` jobs or begin with their prompts, and let `ready`
        ones join the batch; a report says what became of each, in this order."""

        def order(engine: Engine) -> None:
            self._admitted += [
                Admitted(job, _admit(engine, job) if job.is_local else _reserve(engine, job)) for job in new
            ]
            self._admitted += [Admitted(job, _attach(engine, job)) for job in ready]

        self._orders.append(order)

    def lend(self, key: str) -> None:
        """Lend KV of a job that goes on, under its `loan_key`; a report says what there is."""
        self._orders.append(lambda engine: self._loans.append(_lend(engine, key)))

    def halt(self, key: str, base: int) -> None:
        """Stop a job of which KV is lent; a report says where it is, and which tokens it has from `base`
        on."""
        self._orders.append(lambda engine: self._loans.append(_halt(engine, key, base)))

    def propose(self, proposals: Sequence[Proposal]) -> None:
        """Let the next steps verify what fits of these drafts."""
        if proposals:
            self._orders.append(lambda _: self._draft_offers.take(proposals))

    def close_thinking(self, key: str) -> None:
        """Let what a job's model thinks end before the next step."""
        self._orders.append(lambda engine: engine.close_thinking(key))

    def limit_ngrams(self, longest: int) -> None:
        """Let steps draft so many tokens at most from a sequence's own text."""
        self._orders.append(lambda engine: engine.limit_ngrams(longest))

    def limit_head(self, longest: int) -> None:
        """Let steps draft so many tokens at most with a draft head."""
        self._orders.append(lambda engine: engine.limit_head(longest))

    def take_report(self) -> StepReport | None:
        """The next of what the engine has done; None when the loop knows all of it. Raises what the engine
        raised, behind all else."""
        if self._reports:
            report = self._reports.popleft()
            self._num_taken += 1
            self._learn(report.snapshot)
            self.steps += report.result is not None
            return report
        ended = self._take_ended()
        if ended is not None:
            self._learn(ended[1])
        return None

    async def step_on(self) -> None:
        """Let the engine go on, if it has stopped and there is something to do."""
        if self.stepping:
            self.end_wait()
            return
        if self._orders or self.snapshot.has_work:
            self.begin_step(self._run)
        else:
            await self.flush_releases()

    async def close_engine(self) -> None:
        self._closing = True
        if self.loaded:
            self.engine.rouse()
        await super().close_engine()

    def _take_in(self, report: StepReport) -> None:
        self._reports.append(report)
        self._wake()

    # ---- in the engine's thread -------------------------------------------------------------------

    def _run(self, engine: Engine) -> None:
        """Step after step, until there is no work or the loop is too far behind."""
        while True:
            self._carry_out_orders(len(self._orders))
            if self._admitted or self._loans:
                self._report((), None)  # whoever waits for a place does not wait for the step as well
            untaken = self._num_reported - self._num_taken
            if self._closing or not engine.has_work or untaken >= MAX_UNTAKEN_REPORTS:
                return
            if not engine.pause():
                continue
            draft_uses = self._draft_offers.offer(engine)
            result = engine.step()
            self.activity.move()
            self._report(draft_uses, result)

    def _report(self, draft_uses: Sequence[DraftUse], result: StepResult | None) -> None:
        admitted, self._admitted = self._admitted, []
        loans, self._loans = self._loans, []
        report = StepReport(admitted, loans, draft_uses, result, self._take_snapshot())
        self._num_reported += 1
        self._loop.call_soon_threadsafe(self._take_in, report)


def loan_key(key: str) -> str:
    """The engine's name for what is lent of a job."""
    return f"{key}-lent"


def _lend(engine: Engine, key: str) -> Loaned:
    try:
        return Loaned(key, engine.lend(key, loan_key(key)))
    except PenstockError as error:
        return Loaned(key, error)


def _halt(engine: Engine, key: str, base: int) -> Loaned:
    try:
        return Loaned(key, engine.halt(key, loan_key(key), base))
    except PenstockError as error:
        return Loaned(key, error)


def _reserve(engine: Engine, job: DecodeJob) -> Reservation | PenstockError:
    num_tokens, spare_tokens = job.arriving_tokens, job.spare_tokens
    names = job.spec.block_hashes[: num_tokens // BLOCK_TOKENS]
    try:
        return engine.reserve(
            job.key,
            num_tokens,
            names,
            share=job.share,
            spare_tokens=spare_tokens,
            inter_token_us=job.inter_token_us,
            stay_s=job.stay_s,
        )
    except PenstockError as error:
        return error


def _admit(engine: Engine, job: DecodeJob) -> AdmitResult | PenstockError:
    try:
        return engine.admit(
            job.key,
            job.spec.token_ids,
            job.spec.prompt_len,
            job.params,
            job.spec.block_hashes,
            adapter=job.adapter,
            share=job.share,
            priority=job.priority,
            deadline_us=round(job.deadline.at_s * 1e6),
            first_token_us=job.first_token_us,
            inter_token_us=job.inter_token_us,
            stay_s=job.stay_s,
            answer_scope=job.answer_scope,
        )
    except PenstockError as error:
        return error


def _attach(engine: Engine, job: DecodeJob) -> PenstockError | None:
    try:
        engine.attach(
            job.key,
            job.token_ids,
            job.spec.prompt_len,
            job.params,
            adapter=job.adapter,
            priority=job.priority,
            deadline_us=round(job.deadline.at_s * 1e6),
            inter_token_us=job.inter_token_us,
            answer_scope=job.answer_scope,
        )
    except PenstockError as error:
        return error
    return None
