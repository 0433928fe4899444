"""The jobs of a prefill worker: queue, leases, tombstones. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from services.prefill.config import PrefillConfig
from services.prefill.due_tokens import due_tokens
from services.prefill.job import PrefillJob, deadline_passed
from services.prefill.queue import DeadlineQueue
from shared.engine.scheduling.order import NORMAL_PRIORITY
from shared.errors import PenstockError
from shared.fairness.service_counters import ServiceCounters
from shared.fairness.share import TenantShare
from shared.fairness.token_cost import prompt_cost
from shared.messages import MAX_REPORTED_TENANTS, TenantQueue
from shared.seams.clock import SYSTEM_CLOCK
from shared.worker.gateway_leases import IsAlive
from shared.worker.job import JobPhase
from shared.worker.job_book import JobBook

LostJob = tuple[PrefillJob, PenstockError]
"""A job that ended here without success, and why."""


class PrefillBook(JobBook[PrefillJob]):
    """Every job is in the queue exactly while its phase is QUEUED."""

    at_work = (JobPhase.COMPUTING, JobPhase.TRANSFERRING)

    def __init__(self, config: PrefillConfig, is_alive: IsAlive) -> None:
        super().__init__("prefill", is_alive)
        self._chunk_tokens = config.max_batch_tokens
        self._counters = ServiceCounters()
        self.queue = DeadlineQueue(
            max_entries=config.max_queued, max_tokens=config.max_queued_tokens, counters=self._counters
        )

    # ---- coming in --------------------------------------------------------------------------------

    def add(self, job: PrefillJob, tokens_per_s: float) -> None:
        """Raises Overloaded, changing nothing."""
        self.queue.push(job.entry(), tokens_per_s)
        self._take_in(job)
        self._counters.join(job.share.tenant)

    # ---- going on ---------------------------------------------------------------------------------

    def take_jobs(self, room_tokens: int) -> tuple[list[PrefillJob], list[LostJob]]:
        """The most urgent jobs that fill `room_tokens` (the last may be longer), and those that expired."""
        chosen: list[PrefillJob] = []
        lost: list[LostJob] = []
        while room_tokens > 0 and len(self.queue):
            taken = self.queue.take_entry(lambda key: self._can_start(self.jobs[key]))
            lost += self._expired_in_queue(entry.key for entry in taken.expired)
            if taken.entry is None:
                break
            job = self.jobs[taken.entry.key]
            chosen.append(job)
            job.charged, job.lead = prompt_cost(job.remaining_tokens), taken.lead
            self._counters.charge(job.share, job.charged)
            room_tokens -= job.remaining_tokens
            if self.queue.claims_room(taken.entry):
                break
        return chosen, lost

    def _can_start(self, job: PrefillJob) -> bool:
        return not (job.compiling or job.fetching)

    def put_back(self, job: PrefillJob) -> None:
        """The job found no room in the engine."""
        if job.refused_s is None:
            job.refused_s = SYSTEM_CLOCK.monotonic_s()
        self._counters.charge(job.share, -job.charged)
        self.queue.put_back(job.entry(), job.lead)

    def remove(self, key: str) -> PrefillJob | None:
        """The job holds nothing any more."""
        job = self._let_go(key)
        if job is not None:
            self._counters.leave(job.share.tenant)
            if job.phase is JobPhase.QUEUED:
                self.queue.remove(key)
        return job

    # ---- what must end ----------------------------------------------------------------------------

    def expired_in_queue(self) -> list[LostJob]:
        return self._expired_in_queue(entry.key for entry in self.queue.expired())

    # ---- reading ----------------------------------------------------------------------------------

    @property
    def prompts_ahead(self) -> int:
        """Prompts being computed that do not give way to the next one in the queue: those of its tenant that
        are of its class or above, and those of tenants that have had less."""
        computing = self.in_phase(JobPhase.COMPUTING)
        first = self.queue.first
        return sum(first is None or self.queue.goes_before(job.entry(), first) for job in computing)

    @property
    def waiting_prompts(self) -> int:
        """The prompts that have no first token yet."""
        return len(self.queue) + len(self.in_phase(JobPhase.COMPUTING))

    @property
    def tenant_queues(self) -> tuple[TenantQueue, ...]:
        """The uncomputed tokens of the tenants that have most; none where there is one tenant alone."""
        tokens: Counter[str] = Counter()
        weights: dict[str, int] = {}
        for job in self.jobs.values():
            if job.phase in (JobPhase.QUEUED, JobPhase.COMPUTING):
                tokens[job.share.tenant] += job.remaining_tokens
                weights[job.share.tenant] = job.share.weight
        if len(tokens) < 2:
            return ()
        most = tokens.most_common(MAX_REPORTED_TENANTS)
        return tuple(TenantQueue(TenantShare(tenant, weights[tenant]), count) for tenant, count in most)

    @property
    def uncomputed_tokens(self) -> int:
        """The tokens that are to be computed here before a prompt that comes now: of those that wait, that
        are about to join the engine and that it has, without what is on its way here."""
        return sum(
            job.remaining_tokens - job.coming_tokens
            for job in self.jobs.values()
            if job.phase in (JobPhase.QUEUED, JobPhase.COMPUTING)
        )

    @property
    def due_tokens(self) -> tuple[int, ...]:
        """Return how many of them come before a prompt of a normal class, by when that is due: see
        `WorkerReport`. None where tenants go by what they have had."""
        ahead = [job for job in self.jobs.values() if job.phase in (JobPhase.QUEUED, JobPhase.COMPUTING)]
        if not ahead or len({job.share.tenant for job in ahead}) > 1:
            return ()
        return due_tokens(
            (
                (
                    job.first_token.remaining_s() if job.priority >= NORMAL_PRIORITY else 0.0,
                    job.remaining_tokens - job.coming_tokens,
                )
                for job in ahead
            ),
            min(self.computing_tokens, self._chunk_tokens),
        )

    @property
    def computing_tokens(self) -> int:
        """Tokens of admitted jobs that are still to compute."""
        return sum(job.remaining_tokens for job in self.in_phase(JobPhase.COMPUTING))

    def _expired_in_queue(self, keys: Iterable[str]) -> list[LostJob]:
        lost: list[LostJob] = []
        for key in keys:
            job = self.remove(key)
            if job is not None:
                waited_ms = round(1000 * (SYSTEM_CLOCK.monotonic_s() - job.arrived_s))
                lost.append(
                    (job, deadline_passed(f"while it waited for {waited_ms} ms in the prefill queue"))
                )
        return lost
