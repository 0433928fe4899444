"""All requests of a prefill worker and what each of them holds: queue, jobs, leases, tombstones. No I/O."""

from __future__ import annotations

import time
from collections.abc import Iterable

from services.prefill.config import PrefillConfig
from services.prefill.job import Job, Phase
from services.prefill.queue import DeadlineQueue
from shared.errors import DeadlineExpired, PenstockError
from shared.worker.gateway_leases import IsAlive
from shared.worker.placed import PlacedBook

Lost = tuple[Job, PenstockError]
"""A job that ended here without success, and why."""


class JobBook(PlacedBook[Job]):
    """Jobs by key. Every job is in the queue exactly while its phase is QUEUED."""

    def __init__(self, config: PrefillConfig, is_alive: IsAlive) -> None:
        super().__init__("prefill", is_alive)
        self.queue = DeadlineQueue(max_entries=config.max_queued, max_tokens=config.max_queued_tokens)

    # ---- coming in --------------------------------------------------------------------------------

    def add(self, job: Job, tokens_per_s: float) -> None:
        """Raises Overloaded, changing nothing."""
        self.queue.push(job.entry(), tokens_per_s)
        self._take_in(job)

    # ---- going on ---------------------------------------------------------------------------------

    def take(self, room_tokens: int) -> tuple[list[Job], list[Lost]]:
        """The most urgent jobs that fill `room_tokens` (the last may be longer), and those that expired."""
        chosen: list[Job] = []
        lost: list[Lost] = []
        while room_tokens > 0 and len(self.queue):
            taken = self.queue.take()
            lost += self._expired_in_queue(entry.key for entry in taken.expired)
            if taken.entry is not None:
                job = self.placed[taken.entry.key]
                chosen.append(job)
                room_tokens -= job.remaining_tokens
        return chosen, lost

    def put_back(self, job: Job) -> None:
        self.queue.put_back(job.entry())

    def remove(self, key: str) -> Job | None:
        """The job holds nothing any more."""
        job = self._let_go(key)
        if job is not None and job.phase is Phase.QUEUED:
            self.queue.remove(key)
        return job

    # ---- what must end ----------------------------------------------------------------------------

    def expired_in_queue(self) -> list[Lost]:
        return self._expired_in_queue(entry.key for entry in self.queue.expired())

    def expired_in_work(self) -> list[Job]:
        """Jobs past their deadline that are being computed or sent."""
        working = (Phase.COMPUTING, Phase.SENDING)
        return [job for job in self.placed.values() if job.phase in working and job.deadline.expired()]

    # ---- reading ----------------------------------------------------------------------------------

    def in_phase(self, phase: Phase) -> list[Job]:
        return [job for job in self.placed.values() if job.phase is phase]

    @property
    def prompts_ahead(self) -> int:
        """Prompts being computed that are of the class of the next one in the queue, or above."""
        computing = self.in_phase(Phase.COMPUTING)
        first = self.queue.first_priority
        return sum(1 for job in computing if first is None or job.entry().priority >= first)

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
