"""Hand sequences over to other decode workers: while they still run their KV is sent, then they stop.

    lending → asking → sending ⇄ (lent again) → halting → leaving → (released)

A sequence that cannot be handed over goes on here. Once it has stopped only its successor's word counts:
what is not acknowledged is lost here, and its gateway routes the request anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

import structlog

from services.decode.driver import DecodeDriver, loan_key
from services.decode.job import DecodeJob
from shared.engine import KvLoan
from shared.errors import InternalError, PenstockError
from shared.kv.limits import HALT_AFTER_TOKENS
from shared.kv.sending.sender import KvSender
from shared.kv.transfer_key import TransferKey
from shared.messages import Message, Successor
from shared.seams.clock import SYSTEM_CLOCK
from shared.tasks import start_task
from shared.telemetry import metrics
from shared.worker.job import JobPhase
from shared.worker.wire import sequence_key

log = structlog.get_logger()

LAST_TOKENS = 64
"""A sequence stops when no more than KV of so many tokens is left to be sent: its client waits for that."""
AGAIN_AFTER_S = 0.5
"""The least time between two tries to hand the same sequence over."""

AskGateway = Callable[[DecodeJob, int, str], Awaitable[Message]]
"""Ask the gateway of a job for a successor from a position on, and for a relief, "" where we leave."""


class _Stage(Enum):
    LENDING = auto()
    ASKING = auto()
    SENDING = auto()
    HALTING = auto()
    LEAVING = auto()


@dataclass(slots=True, eq=False)
class _HandOver:
    """`base`: the tokens that its successor is told of by the gateway; `lent`: those that it had when its KV
    was last lent. `failed`: its transfer did, while it was being halted."""

    job: DecodeJob
    relief: str
    stage: _Stage = _Stage.LENDING
    base: int = 0
    lent: int = 0
    lending: bool = True
    successor: str = ""
    loan: KvLoan | None = None
    failed: PenstockError | None = None
    asking: asyncio.Task[None] | None = None


class HandOvers:
    """The hand-overs of a worker, at most `limit` at a time.

    `ended` and `lost` are for the actor's turn: jobs whose successors have them, by name, and those of which
    nobody knows that. `on_sent`, `on_failed` and `on_released` are the sender's callbacks.
    """

    def __init__(self, limit: int, driver: DecodeDriver, ask: AskGateway, wake: Callable[[], None]) -> None:
        self._limit = limit
        self._driver = driver
        self._ask = ask
        self._wake = wake
        self._under_way: dict[str, _HandOver] = {}
        self._answers: deque[tuple[_HandOver, Message | PenstockError]] = deque()
        self.ended: deque[tuple[DecodeJob, str]] = deque()
        self.lost: deque[tuple[DecodeJob, PenstockError]] = deque()
        self.sender: KvSender

    def begin(self, jobs: Iterable[DecodeJob], relief: str = "") -> None:
        """Begin with as many of `jobs`, which decode here, as the limit allows. `relief`: this worker goes
        on, and they stay unless that is found elsewhere."""
        now_s = SYSTEM_CLOCK.monotonic_s()
        for job in jobs:
            if len(self._under_way) >= self._limit:
                return
            if job.key not in self._under_way and job.stays_until_s <= now_s:
                self._under_way[job.key] = _HandOver(job, relief)
                self._driver.lend(job.key)

    def is_under_way(self, key: str) -> bool:
        """Whether the job of that key is being handed over."""
        return key in self._under_way

    def take_loan(self, key: str, outcome: KvLoan | PenstockError) -> list[DecodeJob]:
        """The engine has lent KV, or halted a sequence, or could not; returns the job that has left the
        batch."""
        leaving = self._under_way.get(key)
        if leaving is None:
            return []
        leaving.lending = False
        if leaving.failed is not None:
            del self._under_way[key]
            if isinstance(outcome, KvLoan):  # it has stopped, for nothing
                self._lose(leaving, leaving.failed)
            return []
        if isinstance(outcome, PenstockError):
            self._give_up(leaving, outcome)
            return []
        leaving.lent = outcome.num_tokens
        if leaving.stage is _Stage.LENDING:
            leaving.stage, leaving.base, leaving.loan = _Stage.ASKING, outcome.num_tokens, outcome
            leaving.asking = start_task(
                self._ask_gateway(leaving), name=f"hand-over-{leaving.job.request_id}"
            )
        elif leaving.stage is _Stage.SENDING:
            self.sender.extend_transfer(leaving.job.transfer_key, outcome.tables)
        elif leaving.stage is _Stage.HALTING:
            self._leave(leaving, outcome)
            return [leaving.job]
        return []

    def take_answers(self) -> None:
        """Go on with those whose gateways have answered."""
        while self._answers:
            leaving, answer = self._answers.popleft()
            job = leaving.job
            if self._under_way.get(job.key) is not leaving:
                continue
            if not isinstance(answer, Successor):
                wrong = InternalError(f"a gateway named a successor with {type(answer).__name__}")
                self._give_up(leaving, answer if isinstance(answer, PenstockError) else wrong)
                continue
            loan = leaving.loan
            assert loan is not None
            leaving.stage, leaving.successor = _Stage.SENDING, answer.decode
            self.sender.offer_transfer(
                job.request_id,
                job.epoch,
                job.gateway,
                answer.decode,
                loan.tables,
                loan.first_blocks,
                job.deadline,
                grows=True,
            )

    def holds_blocks(self, job: DecodeJob) -> bool:
        """Whether a transfer reads the job's own blocks, so that they stay until it is released."""
        leaving = self._under_way.get(job.key)
        return leaving is not None and leaving.stage is _Stage.LEAVING

    def end(self, job: DecodeJob, *, finish: str = "", reason: str = "") -> None:
        """The job is over here: it has finished, or nobody wants it any more for a `reason`."""
        leaving = self._under_way.pop(job.key, None)
        if leaving is None:
            return
        if leaving.asking is not None:
            leaving.asking.cancel()
        if leaving.stage in (_Stage.LENDING, _Stage.ASKING):
            self._driver.release_later(loan_key(job.key))
        elif finish:
            self.sender.finish_transfer(job.transfer_key, (), finish)
        else:
            self.sender.abort_transfer(job.transfer_key, reason)
        metrics.HAND_OVERS.labels(outcome="finished" if finish else "given_up").inc()

    # ---- what the sender says ---------------------------------------------------------------------

    def on_sent(self, key: TransferKey) -> None:
        """All that is lent was sent: lend what came since, or stop where that is little, or room runs out."""
        leaving = self._under_way.get(sequence_key(*key))
        if leaving is None or leaving.stage is not _Stage.SENDING or leaving.lending:
            return
        job, has = leaving.job, leaving.job.num_known_tokens
        leaving.lending = True
        if has - leaving.lent > LAST_TOKENS and has - leaving.base < HALT_AFTER_TOKENS:
            self._driver.lend(job.key)
        else:
            self._halt(leaving)
        self._wake()

    def on_failed(self, key: TransferKey, error: PenstockError) -> None:
        leaving = self._under_way.get(sequence_key(*key))
        if leaving is None:
            return
        if leaving.stage is _Stage.HALTING:
            leaving.failed = error
        elif leaving.stage is _Stage.LEAVING:
            leaving.job.phase = JobPhase.STOPPING  # until nobody reads its blocks any more
            self._lose(leaving, error)
        else:
            self._give_up(leaving, error)

    def on_released(self, key: TransferKey) -> None:
        """Nobody reads the blocks of the transfer any more; without a failure its receiver has all."""
        name = sequence_key(*key)
        self._driver.release_later(loan_key(name))
        leaving = self._under_way.get(name)
        if leaving is not None and leaving.stage is _Stage.LEAVING:
            del self._under_way[name]
            metrics.HAND_OVERS.labels(outcome="handed_over").inc()
            self.ended.append((leaving.job, leaving.successor))
        self._wake()

    # ---- one step further ---------------------------------------------------------------------------

    def halt_outgrown(self) -> None:
        """Stop those that would soon have more tokens than their successors have made room for."""
        for leaving in self._under_way.values():
            grown = leaving.job.num_known_tokens - leaving.base
            if leaving.stage is _Stage.SENDING and not leaving.lending and grown >= HALT_AFTER_TOKENS:
                leaving.lending = True
                self._halt(leaving)

    def _halt(self, leaving: _HandOver) -> None:
        leaving.stage = _Stage.HALTING
        self._driver.halt(leaving.job.key, leaving.base)

    async def _ask_gateway(self, leaving: _HandOver) -> None:
        answer: Message | PenstockError
        try:
            answer = await self._ask(leaving.job, leaving.base, leaving.relief)
        except PenstockError as error:
            answer = error
        self._answers.append((leaving, answer))
        self._wake()

    def _leave(self, leaving: _HandOver, halted: KvLoan) -> None:
        job = leaving.job
        leaving.stage, job.phase = _Stage.LEAVING, JobPhase.LEAVING
        self.sender.extend_transfer(job.transfer_key, halted.tables)
        self.sender.finish_transfer(job.transfer_key, halted.token_ids, "", job.last_token_s)

    def _give_up(self, leaving: _HandOver, error: PenstockError) -> None:
        """It goes on here, and is tried again later."""
        job = leaving.job
        say = log.debug if leaving.relief else log.info  # that nobody is better off is no news
        say("not_handed_over", request_id=job.request_id, epoch=job.epoch, why=str(error))
        metrics.HAND_OVERS.labels(outcome=error.code).inc()
        self._under_way.pop(job.key, None)
        job.stays_until_s = SYSTEM_CLOCK.monotonic_s() + AGAIN_AFTER_S
        if leaving.stage in (_Stage.LENDING, _Stage.ASKING):
            self._driver.release_later(loan_key(job.key))
        else:
            self.sender.abort_transfer(job.transfer_key, error.code)

    def _lose(self, leaving: _HandOver, error: PenstockError) -> None:
        """It has stopped here, and nobody knows whether it goes on elsewhere."""
        log.warning("hand_over_lost", request_id=leaving.job.request_id, successor=leaving.successor)
        metrics.HAND_OVERS.labels(outcome=error.code).inc()
        self._under_way.pop(leaving.job.key, None)
        self.lost.append((leaving.job, error))
        self._wake()
