"""The book of a worker's jobs, and the rules that every route obeys. No I/O."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from shared.actor import Tombstones
from shared.deadline import SYSTEM_CLOCK
from shared.errors import Cancelled, InvalidRequest, StaleEpoch
from shared.messages import TenantQueue
from shared.telemetry import metrics
from shared.worker.gateway_leases import GatewayLeases, IsAlive
from shared.worker.job import Job, JobPhase

J = TypeVar("J", bound=Job)


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """The load that routing goes by; fields as in `Heartbeat` and `WorkerReport`."""

    capacity: int
    live: int
    kv_blocks_free: int
    queued: int = 0
    queued_tokens: int = 0
    tenant_queues: tuple[TenantQueue, ...] = ()
    due_tokens: tuple[int, ...] = ()


class JobBook(Generic[J]):
    """Jobs by key, each under a lease of its gateway; those that are over leave tombstones."""

    at_work: ClassVar[Collection[JobPhase]] = ()
    """The phases in which a passed deadline ends a job at the next turn."""

    def __init__(self, hop: str, is_alive: IsAlive) -> None:
        self.jobs: dict[str, J] = {}
        self.tombstones = Tombstones()
        self._hop = hop
        self._leases = GatewayLeases(is_alive)

    def check_epoch(self, request_id: str, epoch: int, gateway: str) -> None:
        """Raises Cancelled or StaleEpoch when this route is over before it came, InvalidRequest when the
        request is another gateway's."""
        reason = self.tombstones.refuses(request_id, epoch, gateway)
        if reason:
            raise Cancelled(f"the request was cancelled before it arrived ({reason})", hop=self._hop)
        if any(job.gateway != gateway for job in self.of_request(request_id)):
            metrics.DROPPED_MESSAGES.labels(reason="foreign_route").inc()
            raise InvalidRequest("another gateway has placed a request of this id; use ids of your own")
        if any(job.epoch > epoch for job in self.of_request(request_id)):
            metrics.STALE_MESSAGES.inc()
            raise StaleEpoch("a later route of this request is here already", hop=self._hop)

    def cancel(self, request_id: str, epoch: int, reason: str, sender: str = "") -> list[J]:
        """Return what a cancel of `sender` ends here: what that gateway has placed ("": it has not said who
        it is).

        A route of it up to this epoch that comes later is refused.
        """
        self.tombstones.add(request_id, epoch, reason, by=sender)
        jobs = [job for job in self.of_request(request_id) if job.epoch <= epoch]
        own = [job for job in jobs if sender in ("", job.gateway)]
        if len(own) < len(jobs):
            metrics.DROPPED_MESSAGES.labels(reason="foreign_cancel").inc()
        return own

    def of_request(self, request_id: str) -> list[J]:
        return [job for job in self.jobs.values() if job.request_id == request_id]

    def of_gateway(self, gateway: str) -> list[J]:
        return [job for job in self.jobs.values() if job.gateway == gateway]

    def in_phase(self, phase: JobPhase) -> list[J]:
        return [job for job in self.jobs.values() if job.phase is phase]

    def has_in_phase(self, phase: JobPhase) -> bool:
        return any(job.phase is phase for job in self.jobs.values())

    def expired_at_work(self) -> list[J]:
        """Return jobs past their deadline that are still at work. Each turn asks, so time is read once."""
        now_s = SYSTEM_CLOCK.monotonic_s()
        return [job for job in self.jobs.values() if job.deadline.at_s <= now_s and job.phase in self.at_work]

    def abandoned(self) -> list[J]:
        """Jobs whose gateway has not been heard for a lease."""
        return [self.jobs[key] for key in self._leases.expired()]

    def _take_in(self, job: J) -> None:
        self.jobs[job.key] = job
        self._leases.grant(job.key, job.gateway)

    def _let_go(self, key: str) -> J | None:
        job = self.jobs.pop(key, None)
        if job is not None:
            self._leases.drop(key)
        return job
