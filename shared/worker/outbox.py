"""What a worker sends on its own account. A message that cannot be sent is counted, never raised.

Whoever waits for it learns in another way: gateways by position gaps, leases and the fleet view.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from shared.bus import Bus
from shared.bus.subjects import inbox
from shared.errors import PenstockError
from shared.messages import Lost, Message
from shared.telemetry import metrics
from shared.worker.wire import JobOutput, tokens_messages

log = structlog.get_logger()


class Outbox:
    def __init__(self, bus: Bus, hop: str) -> None:
        self._bus = bus
        self._hop = hop

    async def tell(
        self, role: str, instance: str, message: Message, request_id: str = "", epoch: int = 0
    ) -> None:
        try:
            await self._bus.publish(inbox(role, instance), message, self._bus.envelope(request_id, epoch))
        except PenstockError as error:
            metrics.DROPPED_MESSAGES.labels(reason="unsent").inc()
            log.warning("message_unsent", message=type(message).__name__, error=error.message)

    async def tokens(self, outputs: Iterable[JobOutput]) -> None:
        """One message per detokenizer."""
        for detokenizer, message in tokens_messages(outputs):
            await self.tell("detokenizer", detokenizer, message)

    async def lost(self, gateway: str, request_id: str, epoch: int, error: PenstockError) -> None:
        """Tell the session that its request cannot go on here."""
        await self.tell(
            "gateway", gateway, Lost(error.code, error.message, error.hop or self._hop), request_id, epoch
        )
