"""Let time act on a sender's transfers: leases and deadlines end, and messages are sent again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from shared.deadline import Clock
from shared.errors import DeadlineExpired, PenstockError
from shared.kv.sending.outgoing import OutgoingPhase, OutgoingTransfer
from shared.kv.sending.unknown_transfers import UnknownTransfers
from shared.kv.timer_pause import TimerPause
from shared.kv.transfer_key import TransferKey
from shared.telemetry import metrics


class OutgoingTimerOwner(Protocol):
    """The sender, as its timer sees it."""

    def release_transfer(self, outgoing: OutgoingTransfer) -> None: ...
    def fail_transfer(self, outgoing: OutgoingTransfer, error: PenstockError) -> None: ...
    def tell_done(self, outgoing: OutgoingTransfer) -> None: ...
    def tell_abort(self, outgoing: OutgoingTransfer) -> None: ...


class OutgoingTimer:
    """`transfers` is the sender's own table."""

    def __init__(
        self,
        transfers: Mapping[TransferKey, OutgoingTransfer],
        unknown: UnknownTransfers,
        wake_send_loop: Callable[[], None],
        owner: OutgoingTimerOwner,
        clock: Clock,
    ) -> None:
        self._transfers = transfers
        self._unknown = unknown
        self._wake_send_loop = wake_send_loop
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
            self._unknown.forget_expired(now_s)
            for outgoing in tuple(self._transfers.values()):
                if self._transfers.get(outgoing.key) is outgoing:  # no callback has ended it meanwhile
                    self._look_after(outgoing, now_s)

    def _look_after(self, outgoing: OutgoingTransfer, now_s: float) -> None:
        if outgoing.lease_over(now_s):
            self._owner.release_transfer(outgoing)
            return
        error = self._failure(outgoing, now_s)
        if error is not None:
            self._owner.fail_transfer(outgoing, error)
            return
        if outgoing.go_back(now_s):
            metrics.KV_CELLS_AGAIN.labels("unacknowledged").inc()
            self._wake_send_loop()
        if outgoing.ask_again(now_s):
            if outgoing.phase is OutgoingPhase.ABORTING:
                self._owner.tell_abort(outgoing)
            else:
                self._owner.tell_done(outgoing)

    def _failure(self, outgoing: OutgoingTransfer, now_s: float) -> PenstockError | None:
        if outgoing.phase is OutgoingPhase.ABORTING:
            return None
        error = outgoing.failure(now_s)
        if error is None and outgoing.deadline.expired(self._clock):
            error = DeadlineExpired(
                "the deadline passed before the KV was sent; allow more time or send less work",
                hop="prefill",
            )
        return error
