"""Let KV of jobs come in, from a prefill worker or from a decode worker that hands a request over."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from services.decode.book import DecodeBook
from services.decode.job import DecodeJob
from services.decode.job_ends import JobEnds
from services.decode.pace import DecodePace
from shared.bus.fleet import FleetView
from shared.engine import Engine, Reservation
from shared.errors import Overloaded, PenstockError
from shared.kv.both_sides import MakeReceiver
from shared.kv.receiving.receiver import KvReceiver
from shared.kv.transfer_key import TransferKey
from shared.seams.clock import SYSTEM_CLOCK
from shared.telemetry import metrics
from shared.worker.job import JobPhase
from shared.worker.wire import sequence_key

UNKNOWN_PREFILL_RETRY_MS = 250  # a heartbeat later a prefill worker that has just started is known


class KvArrivals:
    """`failed` is for the actor's turn: jobs whose KV will not come, and why. `on_complete`, `on_failed` and
    `on_released` are the receiver's callbacks, from anywhere on the loop."""

    def __init__(
        self,
        book: DecodeBook,
        pace: DecodePace,
        ends: JobEnds,
        fleet: FleetView,
        wake: Callable[[], None],
    ) -> None:
        self._book = book
        self._pace = pace
        self._ends = ends
        self._fleet = fleet
        self._wake = wake
        self.failed: deque[tuple[DecodeJob, PenstockError]] = deque()
        self.receiver: KvReceiver

    async def open(self, engine: Engine, make_receiver: MakeReceiver) -> None:
        """Begin to receive into the pool of `engine`."""
        self.receiver = make_receiver(engine, self.on_complete, self.on_failed, self.on_released)
        await self.receiver.start()

    def expect(self, job: DecodeJob, reserved: Reservation) -> None:
        """Let KV of a job come into the blocks that it has now. Raises Overloaded."""
        incarnation = self._peer_incarnation(job)
        metrics.PREFIX_CACHE_QUERIES.inc(len(job.spec.block_hashes))
        metrics.PREFIX_CACHE_HITS.inc(reserved.num_cached_blocks)
        job.phase = JobPhase.TRANSFERRING
        self.receiver.expect_transfer(
            job.request_id,
            job.epoch,
            job.gateway,
            job.peer,
            incarnation,
            reserved.tables,
            reserved.first_blocks,
            job.deadline,
            sender_role=job.peer_role,
            filled_tokens=job.arriving_tokens if job.is_handed_over else None,
        )

    def _peer_incarnation(self, job: DecodeJob) -> int:
        """The life of the worker that KV comes from. Raises Overloaded for a prefill worker that is not
        known."""
        if job.is_handed_over:
            return job.peer_incarnation
        prefill = self._fleet.get("prefill", job.peer)
        if prefill is None:
            raise Overloaded(
                f"prefill worker {job.peer} is not known here; try again or use another one",
                retry_after_ms=UNKNOWN_PREFILL_RETRY_MS,
            )
        return prefill.heartbeat.incarnation

    def note_draws(self) -> None:
        """Take note of when the first tokens of jobs were drawn whose KV is on its way."""
        for job in self._book.in_phase(JobPhase.TRANSFERRING):
            job.last_token_s = self.receiver.sampled_s(job.transfer_key)

    # ---- what the receiver says ---------------------------------------------------------------------

    def on_complete(self, key: TransferKey, token_ids: tuple[int, ...], finish: str, exposed_us: int) -> None:
        job = self._book.jobs.get(sequence_key(*key))
        if job is None or job.phase is not JobPhase.TRANSFERRING:
            return
        job.first_tokens = token_ids
        if finish:  # the first token was the last
            if job.is_handed_over:  # who has the whole of it keeps it
                self._ends.end(job)
            else:
                self._ends.end_finished(job)
            return
        job.phase = JobPhase.READY
        job.transfer_us = exposed_us
        if not job.is_handed_over:
            self._pace.observe_transfer(exposed_us)
        job.ready_s = SYSTEM_CLOCK.monotonic_s()
        job.last_token_s = job.ready_s - exposed_us / 1e6
        self._wake()

    def on_failed(self, key: TransferKey, error: PenstockError) -> None:
        job = self._book.jobs.get(sequence_key(*key))
        if job is not None and job.phase is JobPhase.TRANSFERRING:
            job.phase = JobPhase.STOPPING
            self.failed.append((job, error))
            self._wake()

    def on_released(self, key: TransferKey) -> None:
        job = self._book.jobs.get(sequence_key(*key))
        if job is not None:
            self._ends.end(job)
