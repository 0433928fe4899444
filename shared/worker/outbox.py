"""Send messages on a worker's own account. One that cannot be sent is counted, never raised.

Whoever waits for it learns in another way: gateways by position gaps, leases and the fleet view. Nor does a
message that the bus has no room for hold up who sends it: it waits here, in order, for a later turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import structlog

from shared.bus import Bus
from shared.bus.subjects import inbox
from shared.engine.results import PromptScores
from shared.errors import PenstockError
from shared.messages import Envelope, Lost, Message, PromptLogprobs
from shared.telemetry import metrics
from shared.worker.wire import JobOutput, tokens_messages

log = structlog.get_logger()


OUTBOX_LIMIT = 2048
"""Messages that wait here, seconds of a bus that takes nothing. From half of that on nothing more should be
computed; what is too much is dropped."""


class Outbox:
    def __init__(self, bus: Bus, hop: str) -> None:
        self._bus = bus
        self._hop = hop
        self._waiting: deque[tuple[str, Message, Envelope]] = deque()

    @property
    def crowded(self) -> bool:
        """True when so much waits that there should be no more tokens before some of it is sent."""
        return len(self._waiting) >= OUTBOX_LIMIT // 2

    @property
    def waiting(self) -> int:
        """Messages that the bus has had no room for yet."""
        return len(self._waiting)

    async def tell(
        self, role: str, instance: str, message: Message, request_id: str = "", epoch: int = 0
    ) -> None:
        subject, envelope = inbox(role, instance), self._bus.envelope(request_id, epoch)
        if self._bus.has_room and not self._waiting:
            await self._send(subject, message, envelope)
        elif len(self._waiting) < OUTBOX_LIMIT:
            self._waiting.append((subject, message, envelope))
        else:
            metrics.DROPPED_MESSAGES.labels(reason="outbox_full").inc()

    async def send_waiting(self) -> None:
        """Once a turn: what the bus has room for."""
        while self._waiting and self._bus.has_room:
            await self._send(*self._waiting.popleft())

    async def send_rest(self) -> None:
        """Send the rest at the end, room or not."""
        while self._waiting:
            await self._send(*self._waiting.popleft())

    async def _send(self, subject: str, message: Message, envelope: Envelope) -> None:
        try:
            await self._bus.publish(subject, message, envelope)
        except PenstockError as error:
            metrics.DROPPED_MESSAGES.labels(reason="unsent").inc()
            log.warning("message_unsent", message=type(message).__name__, error=error.message)

    async def tokens(self, outputs: Iterable[JobOutput]) -> None:
        """One message per detokenizer."""
        for detokenizer, message in tokens_messages(outputs):
            await self.tell("detokenizer", detokenizer, message)

    async def prompt_scores(self, gateway: str, request_id: str, epoch: int, scores: PromptScores) -> None:
        """Tell the session how likely tokens of its prompt were."""
        told = PromptLogprobs(scores.position, scores.logprobs)
        await self.tell("gateway", gateway, told, request_id, epoch)

    async def lost(self, gateway: str, request_id: str, epoch: int, error: PenstockError) -> None:
        """Tell the session that its request cannot go on here."""
        await self.tell(
            "gateway", gateway, Lost(error.code, error.message, error.hop or self._hop), request_id, epoch
        )
