"""All requests of a prefill worker and what each of them holds: queue, jobs, leases, tombstones. No I/O."""

from __future__ import annotations

import time
from collections.abc import Iterable

from services.prefill.config import PrefillConfig
from services.prefill.job import Job, Phase
from services.prefill.queue import DeadlineQueue
from shared.actor import Tombstones
from shared.errors import Cancelled, DeadlineExpired, PenstockError, StaleEpoch
from shared.telemetry import metrics
from shared.worker.gateway_leases import GatewayLeases, IsAlive

Lost = tuple[Job, PenstockError]
"""A job that ended here without success, and why."""


class JobBook:
    """Jobs by key. Every job is in the queue exactly while its phase is QUEUED."""

    def __init__(self, config: PrefillConfig, is_alive: IsAlive) -> None:
        self.queue = DeadlineQueue(max_entries=config.max_queued, max_tokens=config.max_queued_tokens)
        self.jobs: dict[str, Job] = {}
        self.tombstones = Tombstones()
        self._leases = GatewayLeases(is_alive)

    # ---- coming in --------------------------------------------------------------------------------

    def check_epoch(self, request_id: str, epoch: int) -> None:
        """Raises Cancelled or StaleEpoch when this placement is over before it came."""
        reason = self.tombstones.refuses(request_id, epoch)
        if reason:
            raise Cancelled(f"the request was cancelled before it arrived ({reason})", hop="prefill")
        if any(job.epoch > epoch for job in self.of_request(request_id)):
            metrics.STALE_MESSAGES.inc()
            raise StaleEpoch("a later placement of this request is here already", hop="prefill")

    def add(self, job: Job, tokens_per_s: float) -> None:
        """Raises Overloaded, changing nothing."""
        self.queue.push(job.entry(), tokens_per_s)
        self.jobs[job.key] = job
        self._leases.grant(job.key, job.gateway)

    # ---- going on ---------------------------------------------------------------------------------

    def take(self, room_tokens: int) -> tuple[list[Job], list[Lost]]:
        """The most urgent jobs that fill `room_tokens` (the last may be longer), and those that expired."""
        chosen: list[Job] = []
        lost: list[Lost] = []
        while room_tokens > 0 and len(self.queue):
            taken = self.queue.take()
            lost += self._expired_in_queue(entry.key for entry in taken.expired)
            if taken.entry is not None:
                job = self.jobs[taken.entry.key]
                chosen.append(job)
                room_tokens -= job.remaining_tokens
        return chosen, lost

    def put_back(self, job: Job) -> None:
        self.queue.put_back(job.entry())

    def remove(self, key: str) -> Job | None:
        """The job holds nothing any more."""
        job = self.jobs.pop(key, None)
        if job is not None:
            self._leases.drop(key)
            if job.phase is Phase.QUEUED:
                self.queue.remove(key)
        return job

    # ---- what must end ----------------------------------------------------------------------------

    def expired_in_queue(self) -> list[Lost]:
        return self._expired_in_queue(entry.key for entry in self.queue.expired())

    def expired_in_work(self) -> list[Job]:
        """Jobs past their deadline that are being computed or sent."""
        working = (Phase.COMPUTING, Phase.SENDING)
        return [job for job in self.jobs.values() if job.phase in working and job.deadline.expired()]

    def abandoned(self) -> list[Job]:
        """Jobs whose gateway has not been heard for a lease."""
        return [self.jobs[key] for key in self._leases.expired()]

    # ---- reading ----------------------------------------------------------------------------------

    def of_request(self, request_id: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.request_id == request_id]

    def in_phase(self, phase: Phase) -> list[Job]:
        return [job for job in self.jobs.values() if job.phase is phase]

    @property
    def computing_tokens(self) -> int:
        """Tokens of admitted jobs that are still to compute."""
        return sum(job.remaining_tokens for job in self.in_phase(Phase.COMPUTING))

    def _expired_in_queue(self, keys: Iterable[str]) -> list[Lost]:
        lost: list[Lost] = []
        for key in keys:
            job = self.remove(key)
            if job is not None:
                waited_ms = round(1000 * (time.monotonic() - job.arrived_s))
                lost.append((job, expired(f"while it waited for {waited_ms} ms in the prefill queue")))
        return lost


def expired(when: str) -> DeadlineExpired:
    return DeadlineExpired(f"the deadline passed {when}; allow more time or send less work", hop="prefill")
