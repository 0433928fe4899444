"""Telling a gateway what its question would be answered with, while the reranker looks at it more closely."""

from __future__ import annotations

from dataclasses import replace

import structlog

from services.retriever.question import Question
from shared.bus import Bus
from shared.bus.subjects import inbox
from shared.errors import PenstockError
from shared.messages import FoundFirst
from shared.telemetry import metrics

log = structlog.get_logger()


async def send_first_passages(bus: Bus, asked: Question) -> None:
    """A hint: where it cannot be sent at once it is left out, and counted."""
    envelope, found = asked.delivery.envelope, asked.ask.found
    if found is None or not envelope.origin:
        return
    if not bus.has_room:
        metrics.DROPPED_MESSAGES.labels(reason="no_room").inc()
        return
    try:
        told = FoundFirst(found.passages)
        await bus.publish(inbox("gateway", envelope.origin), told, replace(envelope, reply=""))
    except PenstockError as error:
        metrics.DROPPED_MESSAGES.labels(reason="unsent").inc()
        log.info("first_passages_unsent", request_id=envelope.request_id, error=error.message)
