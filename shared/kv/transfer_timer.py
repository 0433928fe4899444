"""Let time act on the transfers of one side: leases and deadlines end, and messages are said again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from shared.alarm import Alarm
from shared.deadline import Clock, Deadline
from shared.errors import DeadlineExpired, PenstockError
from shared.kv.limits import REST_TICK_S, TICK_S
from shared.ticks import seconds_to_tick


class TimedTransfer(Protocol):
    """A transfer, as its timer sees it."""

    deadline: Deadline

    @property
    def aborting(self) -> bool: ...
    def lease_over(self, now_s: float) -> bool:
        """Whether an acknowledgement of its abort has been waited for long enough."""
        ...

    def failure(self, now_s: float) -> PenstockError | None:
        """Why it cannot go on, if so; a passed deadline is the timer's to find."""
        ...

    def late(self) -> DeadlineExpired: ...


K = TypeVar("K")
T = TypeVar("T", bound=TimedTransfer)
T_contra = TypeVar("T_contra", bound=TimedTransfer, contravariant=True)


class TimerOwner(Protocol[T_contra]):
    """A sender or a receiver, as its timer sees it."""

    def release_transfer(self, transfer: T_contra, /) -> None: ...
    def fail_transfer(self, transfer: T_contra, error: PenstockError, /) -> None: ...
    def remind_peer(self, transfer: T_contra, now_s: float, /) -> None:
        """Say again what the other side has not answered."""
        ...


class TransferTimer(Generic[K, T]):
    """`transfers` is the owner's own table; `forget_expired(now_s)` empties what is remembered beside it."""

    def __init__(
        self,
        transfers: Mapping[K, T],
        forget_expired: Callable[[float], None],
        owner: TimerOwner[T],
        clock: Clock,
    ) -> None:
        self._transfers = transfers
        self._forget_expired = forget_expired
        self._owner = owner
        self._clock = clock
        self._first_transfer = Alarm()

    def wake(self) -> None:
        """End the rest: there is a transfer."""
        self._first_transfer.ring()

    async def run(self) -> None:
        while True:
            await self._pause()
            self.look_at_all()

    def look_at_all(self) -> None:
        """Let the time that has passed act on each transfer."""
        now_s = self._clock.monotonic_s()
        self._forget_expired(now_s)
        for key, transfer in tuple(self._transfers.items()):
            if self._transfers.get(key) is transfer:  # no callback has ended it meanwhile
                self._check_transfer(transfer, now_s)

    async def _pause(self) -> None:
        """Wait TICK_S where there are transfers, else until there is one."""
        if self._transfers:
            await asyncio.sleep(TICK_S)
            return
        self._first_transfer.clear()
        await self._first_transfer.wait(seconds_to_tick(REST_TICK_S))

    def _check_transfer(self, transfer: T, now_s: float) -> None:
        if transfer.lease_over(now_s):
            self._owner.release_transfer(transfer)
            return
        error = None if transfer.aborting else transfer.failure(now_s)
        if error is None and not transfer.aborting and transfer.deadline.expired(self._clock):
            error = transfer.late()
        if error is not None:
            self._owner.fail_transfer(transfer, error)
        else:
            self._owner.remind_peer(transfer, now_s)
