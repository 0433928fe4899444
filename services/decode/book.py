"""The jobs of a decode worker, and the rule by which new ones are let in. No I/O."""

from __future__ import annotations

from collections import Counter

from services.decode.job import DecodeJob
from shared.blocks.layer_groups import ONE_GROUP, KvGroups
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.errors import Overloaded
from shared.fairness.share import TenantShare
from shared.messages import MAX_REPORTED_TENANTS, Held, TenantJobs
from shared.seams.buggify import BUGGIFY
from shared.worker.gateway_leases import IsAlive
from shared.worker.job import JobPhase
from shared.worker.job_book import JobBook, WorkerLoad

RETRY_AFTER_MS = 100
ON_THE_WAY = (JobPhase.QUEUED, JobPhase.COMPUTING, JobPhase.TRANSFERRING)
"""The phases of a job that has no token here yet, and that soon has a place in the batch."""


class DecodeBook(JobBook[DecodeJob]):
    """A job is let in only if all jobs, with what each comes to next, fit into the pool.

    Where all `max_jobs` places are taken there are `max_guests` more, for tenants that have less than
    another, as gateways know: who sends a request now and then does not wait for the end of another's.

    Where more of them go on than were expected to, the engine has some give way for a while; until the others
    have shrunk by ending, nobody new is let in.
    """

    at_work = tuple(phase for phase in JobPhase if phase is not JobPhase.STOPPING)

    def __init__(
        self,
        *,
        max_jobs: int,
        max_guests: int = 0,
        kv_blocks: int,
        is_alive: IsAlive,
        groups: KvGroups = ONE_GROUP,
        chunk_tokens: int = 1,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`groups` are the engine's; it computes at most `chunk_tokens` of a prompt in a step."""
        super().__init__("decode", is_alive)
        self._clock = clock
        self._max_jobs = max_jobs
        self._max_guests = max_guests
        self._kv_blocks = kv_blocks
        self._groups = groups
        self._chunk_tokens = chunk_tokens
        self._counted_blocks = 0
        self._thinking: dict[str, DecodeJob] = {}
        """The jobs whose thinking has a deadline, which has not passed."""

    def add(self, job: DecodeJob) -> None:
        """Raises Overloaded, changing nothing."""
        most = self._max_jobs + (self._max_guests if job.guest else 0)
        if len(self.jobs) >= most or BUGGIFY.takes("decode is full"):
            raise Overloaded(
                f"all {self._max_jobs} sequences are taken; try another worker or later",
                hop="decode",
                retry_after_ms=RETRY_AFTER_MS,
            )
        needed = self._needed_blocks(job)
        if needed > self.free_blocks:
            raise Overloaded(
                f"{needed} KV blocks are needed and {self.free_blocks} are not taken; "
                "try another worker or later",
                hop="decode",
                retry_after_ms=RETRY_AFTER_MS,
            )
        self._take_in(job)
        self._count(job, needed)
        if job.thinking is not None:
            self._thinking[job.key] = job

    def grow(self, job: DecodeJob) -> None:
        """It has got tokens."""
        self._count(job, self._needed_blocks(job))
        job.recount_at = job.counted_until(self._groups)

    def expired_at_work(self) -> list[DecodeJob]:
        """Return expired jobs, also those whose tokens do not come as fast as their clients wait for them."""
        passed_s, now_s = SYSTEM_CLOCK.monotonic_s(), self._clock.monotonic_s()
        return [
            job
            for job in self.jobs.values()
            if (
                job.deadline.at_s <= passed_s
                or (job.inter_token_s is not None and job.awaited_too_long(now_s))
            )
            and job.phase in self.at_work
        ]

    def take_overdue_thinking(self) -> list[DecodeJob]:
        """Return the jobs in the batch whose thinking has to be closed now, each once."""
        if not self._thinking:
            return []
        overdue = [
            job
            for job in self._thinking.values()
            if job.phase is JobPhase.DECODING and job.thinks_too_long(self._clock)
        ]
        for job in overdue:
            del self._thinking[job.key]
        return overdue

    def check_pace(self, job: DecodeJob, step_s: float) -> None:
        """Raises Overloaded where steps take longer than the job's client waits for tokens."""
        if job.inter_token_s is not None and step_s > job.inter_token_s:
            raise Overloaded(
                f"a step takes {1e3 * step_s:.0f} ms now and tokens are wanted every "
                f"{1e3 * job.inter_token_s:.0f} ms; try another worker, later, or allow more",
                hop="decode",
                retry_after_ms=RETRY_AFTER_MS,
            )

    def shortest_wait_s(self, silent_s: float) -> float:
        """Return how long those that are here wait from token to token, at least: `silent_s` who has not said
        it, which is how long anybody waits where nobody is here."""
        return min((job.inter_token_s or silent_s for job in self.jobs.values()), default=silent_s)

    def remove(self, key: str) -> DecodeJob | None:
        """The job holds nothing any more."""
        job = self._let_go(key)
        self._thinking.pop(key, None)
        if job is not None:
            self._count(job, 0)
        return job

    @property
    def tenants(self) -> tuple[TenantJobs, ...]:
        """The tenants that have most jobs; none where nobody says whose they are."""
        jobs: Counter[str] = Counter(job.share.tenant for job in self.jobs.values())
        weights = {job.share.tenant: job.share.weight for job in self.jobs.values()}
        most = jobs.most_common(MAX_REPORTED_TENANTS)
        return tuple(
            TenantJobs(TenantShare(tenant, weights[tenant]), count) for tenant, count in most if tenant
        )

    @property
    def load(self) -> WorkerLoad:
        """The load that gateways route by."""
        return WorkerLoad(
            capacity=self._max_jobs,
            live=len(self.jobs),
            kv_blocks_free=self.free_blocks,
            queued=sum(job.phase in ON_THE_WAY for job in self.jobs.values()),
            queued_tokens=sum(job.uncomputed_tokens for job in self.jobs.values()),
        )

    @property
    def free_blocks(self) -> int:
        """Blocks that are not counted for any job."""
        return max(0, self._kv_blocks - self._counted_blocks)

    @property
    def missing_blocks(self) -> int:
        """Blocks that are counted for jobs and that there are not: some will have to give way, unless others
        end before."""
        return max(0, self._counted_blocks - self._kv_blocks)

    def _needed_blocks(self, job: DecodeJob) -> int:
        return job.needed_blocks(self._groups, self._chunk_tokens)

    def _count(self, job: DecodeJob, blocks: int) -> None:
        self._counted_blocks += blocks - job.counted_blocks
        job.counted_blocks = blocks

    def held(self) -> list[Held]:
        """Return one lease per job, for audits."""
        return [Held(job.request_id, "lease", 1, job.phase.value) for job in self.jobs.values()]
