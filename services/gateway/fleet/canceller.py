"""Tell the holders of a request that it is over: each by name, then everybody, then again by name."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import structlog

from shared.bus import Bus
from shared.bus.subjects import CANCEL_ALL, inbox
from shared.deadline import Deadline
from shared.errors import PenstockError
from shared.messages import Cancel, CancelAck
from shared.tasks import Tasks

log = structlog.get_logger()

AGAIN_AFTER_S = (1.0, 4.0, 6.0, 10.0)
"""The pauses before those who have not acknowledged are told again: the bus may have been away, and a holder
may come back to it later than the broadcast did. Who is away for longer than all of them has let go: the
gateway's lease has run out there."""


class Canceller:
    def __init__(self, bus: Bus, gateway: str, ack_s: float) -> None:
        self._bus = bus
        self._gateway = gateway
        self._ack_s = ack_s
        self._again = Tasks()

    async def close(self) -> None:
        """Tell nobody again."""
        await self._again.finish(0.0)

    async def cancel_holders(
        self, request_id: str, epoch: int, holders: Collection[tuple[str, str]], reason: str
    ) -> None:
        """Cancel `request_id` up to `epoch` at each holder (role, instance); bounded by the ack timeout.

        Where an ack is missing, everybody is told, and the holder again later, which nobody waits for.
        What no message reaches ends with its lease or its deadline.
        """
        left = await self._cancel_each(request_id, epoch, holders, reason)
        if not left:
            return
        again = self._cancel_again(request_id, epoch, left, reason)
        self._again.start(f"cancel-again-{request_id}", again)
        envelope = self._bus.envelope(request_id, epoch, None, self._gateway)
        try:
            await self._bus.publish(CANCEL_ALL, Cancel(reason), envelope)
        except PenstockError as error:
            log.warning("cancel_not_sent", request_id=request_id, error=str(error))

    async def withdraw(self, request_id: str, epoch: int, role: str, instance: str) -> None:
        """Tell one instance alone, once, not to go on with an epoch that lives elsewhere.

        No other may hear of it, and this one may be asked again. What does not reach it ends with its lease.
        """
        await self._cancel_holder(request_id, epoch, role, instance, "replaced")

    async def release_stream(self, request_id: str, epoch: int, decode: str) -> None:
        """Tell a decode worker that nobody will ask for the stream any more: its client has the end, or has
        left. Nobody waits for the answer; a stream whose release is lost ends with its lease."""
        envelope = self._bus.envelope(request_id, epoch, None, self._gateway)
        try:
            await self._bus.publish(inbox("decode", decode), Cancel("delivered"), envelope)
        except PenstockError as error:
            log.info("stream_not_released", request_id=request_id, instance=decode, error=str(error))

    async def _cancel_again(
        self, request_id: str, epoch: int, holders: Collection[tuple[str, str]], reason: str
    ) -> None:
        for pause_s in AGAIN_AFTER_S:
            await asyncio.sleep(pause_s)
            holders = await self._cancel_each(request_id, epoch, holders, reason)
            if not holders:
                return

    async def _cancel_each(
        self, request_id: str, epoch: int, holders: Collection[tuple[str, str]], reason: str
    ) -> list[tuple[str, str]]:
        """Return those who have not acknowledged."""
        told = sorted(holders)  # the same order in each run, which a set of words has not
        acked = await asyncio.gather(
            *(self._cancel_holder(request_id, epoch, role, instance, reason) for role, instance in told)
        )
        return [holder for holder, heard in zip(told, acked, strict=True) if not heard]

    async def _cancel_holder(
        self, request_id: str, epoch: int, role: str, instance: str, reason: str
    ) -> bool:
        envelope = self._bus.envelope(request_id, epoch, None, self._gateway)
        deadline = Deadline.after(self._ack_s)
        try:
            answer = await self._bus.ask(inbox(role, instance), Cancel(reason), envelope, deadline)
        except PenstockError as error:
            log.info("cancel_unacknowledged", request_id=request_id, instance=instance, error=str(error))
            return False
        return isinstance(answer, CancelAck)
