"""Let jobs leave for other decode workers: their gateways name a successor, and hear when it has them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from services.decode.book import DecodeBook
from services.decode.driver import DecodeDriver
from services.decode.hand_overs import HandOvers
from services.decode.job import DecodeJob
from services.decode.job_ends import JobEnds
from services.decode.output import draft_counts
from services.decode.rebalancing import Rebalancing
from shared.bus import Bus
from shared.bus.subjects import inbox
from shared.engine import Engine
from shared.errors import PenstockError
from shared.kv.sending.sender import KvSender
from shared.kv.transfer_key import OnFailed, OnReleased, OnSent, TransferKey
from shared.messages import HandOver, HandOverDone, Message
from shared.worker.job import JobPhase
from shared.worker.outbox import Outbox
from shared.worker.wire import sequence_key

HAND_OVER_ASK_S = 5.0
"""The longest time for which a gateway looks for a worker that takes a request over."""

MakeHandOverSender = Callable[[Engine, OnReleased, OnFailed, OnSent], KvSender]
LoseLeft = Callable[[DecodeJob, PenstockError], Awaitable[None]]
"""A job has stopped here, and nobody knows whether it goes on elsewhere: its session hears that."""


class Departures:
    """`hand_overs` are under way, at most `limit` at a time."""

    def __init__(
        self,
        limit: int,
        bus: Bus,
        outbox: Outbox,
        book: DecodeBook,
        driver: DecodeDriver,
        ends: JobEnds,
        lose: LoseLeft,
        wake: Callable[[], None],
    ) -> None:
        self._bus = bus
        self._outbox = outbox
        self._book = book
        self._ends = ends
        self._lose = lose
        self._limit = limit
        self.hand_overs = HandOvers(limit, driver, self._ask_for_successor, wake)
        self._rebalancing = Rebalancing(book, self.hand_overs.is_under_way)

    def open(self, engine: Engine, make_sender: MakeHandOverSender) -> None:
        """Make what sends KV out of the pool of `engine`."""
        self.hand_overs.sender = make_sender(
            engine, self.on_released, self.hand_overs.on_failed, self.hand_overs.on_sent
        )

    def begin(self, *, draining: bool) -> None:
        """Let those that decode here leave a worker that drains, and one now and then another that is hard
        pressed."""
        if draining:
            self.hand_overs.begin(self._book.in_phase(JobPhase.DECODING))
        elif self._limit and (chosen := self._rebalancing.choose()) is not None:
            job, relief = chosen
            self.hand_overs.begin([job], relief)

    def forget_earlier(self, job: DecodeJob) -> None:
        """A job that comes from another decode worker may have left this one before: that is over."""
        if job.is_handed_over:
            self.hand_overs.sender.forget_ended(job.transfer_key)

    def on_released(self, key: TransferKey) -> None:
        """Nobody reads KV of a job any more that was to be handed over."""
        self.hand_overs.on_released(key)
        job = self._book.jobs.get(sequence_key(*key))
        if job is not None and job.phase is JobPhase.STOPPING:
            self._ends.end(job)

    async def end_left(self) -> None:
        """Go on with what gateways and transfers have said, and tell gateways of the jobs that have left."""
        self.hand_overs.take_answers()
        while self.hand_overs.ended:
            job, successor = self.hand_overs.ended.popleft()
            told = HandOverDone(successor, draft_counts(job))
            await self._outbox.tell("gateway", job.gateway, told, job.request_id, job.epoch)
            self._ends.end(job)
        while self.hand_overs.lost:
            await self._lose(*self.hand_overs.lost.popleft())

    async def _ask_for_successor(self, job: DecodeJob, position: int, relief: str) -> Message:
        envelope = self._bus.envelope(job.request_id, job.epoch, job.deadline, job.gateway)
        return await self._bus.ask(
            inbox("gateway", job.gateway),
            HandOver(position, relief),
            envelope,
            job.deadline.shrink(HAND_OVER_ASK_S),
        )
