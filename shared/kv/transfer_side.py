"""Hold the transfers of a sender or a receiver, and end each of them once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from shared.deadline import Clock
from shared.errors import PenstockError
from shared.kv.transfer_key import OnFailed, OnReleased, TransferKey
from shared.kv.transfer_timer import TimedTransfer
from shared.messages import Held
from shared.telemetry import metrics


class Transfer(TimedTransfer, Protocol):
    """A transfer, as either side holds it. `peer` is the instance at the other end."""

    key: TransferKey
    peer: str

    @property
    def phase_name(self) -> str: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def transport_name(self) -> str:
        """ "" while none is granted."""
        ...

    def abort(self, reason: str, now_s: float) -> bool:
        """Stop. False: nothing was granted, so that the blocks are free at once."""
        ...


K = TypeVar("K")
T = TypeVar("T", bound=Transfer)


class TransferSide(ABC, Generic[K, T]):
    """`on_failed` is called at most once for a transfer and before `on_released`; both may call back in."""

    def __init__(self, on_failed: OnFailed, on_released: OnReleased, clock: Clock) -> None:
        self._transfers: dict[K, T] = {}
        self._on_failed = on_failed
        self._on_released = on_released
        self._clock = clock

    def held(self) -> tuple[Held, ...]:
        """Return what this side holds, for an audit."""
        return tuple(
            Held(transfer.key[0], "transfer", transfer.num_blocks, transfer.phase_name)
            for transfer in self._transfers.values()
        )

    def fail_transfer(self, transfer: T, error: PenstockError, *, tell: bool = True) -> None:
        """End with an error; without `tell` nobody there needs an abort, so the blocks are free at once."""
        already = transfer.aborting
        if not already:
            metrics.KV_TRANSFERS.labels(transfer.transport_name, error.code).inc()
            if tell:
                self._abort(transfer, error.code, error)
                return
        if not tell:
            self._forget(transfer)
        if not already:
            self._on_failed(transfer.key, error)
        if not tell:
            self._on_released(transfer.key)

    def release_transfer(self, transfer: T) -> None:
        """Give the blocks back: nobody writes or reads them any more."""
        self._forget(transfer)
        self._on_released(transfer.key)

    def _fail_those_of(self, peer: str, error: PenstockError) -> None:
        """Fail the transfers with a lost peer, which acknowledges nothing any more."""
        for transfer in tuple(self._transfers.values()):
            if transfer.peer == peer:
                self.fail_transfer(transfer, error, tell=False)

    def _abort(self, transfer: T, reason: str, error: PenstockError | None = None) -> None:
        granted = transfer.abort(reason, self._now())
        self._stop(transfer)
        if error is not None:
            self._on_failed(transfer.key, error)
        if not self._is_live(transfer):
            return  # on_failed ended it
        if granted:
            self._send_abort(transfer)
        else:
            self.release_transfer(transfer)

    def _now(self) -> float:
        return self._clock.monotonic_s()

    def _stop(self, transfer: T) -> None:
        """Let no further byte of it move."""

    @abstractmethod
    def _is_live(self, transfer: T) -> bool:
        """Whether it is still in the table."""

    @abstractmethod
    def _forget(self, transfer: T) -> None:
        """Take it out of the table, and remember that it has ended."""

    @abstractmethod
    def _send_abort(self, transfer: T) -> None:
        """Tell the other side that it is given up."""
