"""Telling the holders of a request that it is over, with the broadcast as the backstop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import structlog

from shared.bus import Bus
from shared.bus.subjects import CANCEL_ALL, inbox
from shared.deadline import Deadline
from shared.errors import PenstockError
from shared.messages import Cancel, CancelAck

log = structlog.get_logger()


class Canceller:
    def __init__(self, bus: Bus, gateway: str, ack_s: float) -> None:
        self._bus = bus
        self._gateway = gateway
        self._ack_s = ack_s

    async def cancel_holders(
        self, request_id: str, epoch: int, holders: Collection[tuple[str, str]], reason: str
    ) -> None:
        """Cancel `request_id` up to `epoch` at each holder (role, instance); bounded by the ack timeout.

        Where an ack is missing, everybody is told; what no message reaches ends with its lease.
        """
        if not holders:
            return
        told = sorted(holders)  # the same order in each run, which a set of words has not
        acked = await asyncio.gather(
            *(self._cancel_holder(request_id, epoch, role, instance, reason) for role, instance in told)
        )
        if all(acked):
            return
        envelope = self._bus.envelope(request_id, epoch, None, self._gateway)
        try:
            await self._bus.publish(CANCEL_ALL, Cancel(reason), envelope)
        except PenstockError as error:
            log.warning("cancel_not_sent", request_id=request_id, error=str(error))

    async def release_stream(self, request_id: str, epoch: int, decode: str) -> None:
        """Tell a decode worker that nobody will ask for the stream any more: its client has the end, or has
        left. Nobody waits for the answer; a stream whose release is lost ends with its lease."""
        envelope = self._bus.envelope(request_id, epoch, None, self._gateway)
        try:
            await self._bus.publish(inbox("decode", decode), Cancel("delivered"), envelope)
        except PenstockError as error:
            log.info("stream_not_released", request_id=request_id, instance=decode, error=str(error))

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
