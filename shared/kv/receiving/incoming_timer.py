"""Let time act on a receiver's transfers: leases and deadlines end, and messages are said again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from shared.deadline import Clock
from shared.errors import DeadlineExpired, PenstockError
from shared.kv.receiving.ended_transfers import EndedTransfers
from shared.kv.receiving.grants import Grants
from shared.kv.receiving.incoming import IncomingPhase, IncomingTransfer
from shared.kv.timer_pause import TimerPause
from shared.messages import KvAbort, KvMissing, Message
from shared.telemetry import metrics


class IncomingTimerOwner(Protocol):
    """The receiver, as its timer sees it."""

    def release_transfer(self, incoming: IncomingTransfer) -> None: ...
    def fail_transfer(self, incoming: IncomingTransfer, error: PenstockError) -> None: ...
    def tell_sender(self, incoming: IncomingTransfer, message: Message) -> None: ...


class IncomingTimer:
    """`transfers` is the receiver's own table."""

    def __init__(
        self,
        transfers: Mapping[int, IncomingTransfer],
        ended: EndedTransfers,
        grants: Grants,
        owner: IncomingTimerOwner,
        clock: Clock,
    ) -> None:
        self._transfers = transfers
        self._ended = ended
        self._grants = grants
        self._owner = owner
        self._clock = clock
        self._pause = TimerPause(transfers)

    def wake(self) -> None:
        """There is a transfer."""
        self._pause.end()

    async def run(self) -> None:
        while True:
            await self._pause.wait()
            now_s = self._clock.monotonic_s()
            self._ended.forget_expired(now_s)
            for incoming in tuple(self._transfers.values()):
                if self._transfers.get(incoming.transfer) is incoming:  # no callback has ended it meanwhile
                    self._look_after(incoming, now_s)

    def _look_after(self, incoming: IncomingTransfer, now_s: float) -> None:
        if incoming.lease_over(now_s):
            self._owner.release_transfer(incoming)
            return
        error = self._failure(incoming, now_s)
        if error is not None:
            self._owner.fail_transfer(incoming, error)
            return
        self._grants.tell_credit(incoming)
        missing = incoming.take_missing(now_s)
        if missing:
            metrics.KV_CELLS_AGAIN.labels("asked").inc(len(missing))
            self._owner.tell_sender(incoming, KvMissing(incoming.transfer, missing))
        if incoming.ask_again(now_s):
            if incoming.phase is IncomingPhase.ABORTING:
                self._owner.tell_sender(incoming, KvAbort(incoming.transfer, incoming.abort_reason))
            else:
                self._grants.tell_again(incoming)

    def _failure(self, incoming: IncomingTransfer, now_s: float) -> PenstockError | None:
        if incoming.phase is IncomingPhase.ABORTING:
            return None
        error = incoming.failure(now_s)
        if error is None and incoming.deadline.expired(self._clock):
            error = DeadlineExpired(
                "the deadline passed before the KV was here; allow more time or send less work", hop="decode"
            )
        return error
