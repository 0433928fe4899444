"""Tell of requests that have ended: whom a change would reach, and how those do that have it."""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.flags.flag_guards import FlaggedTimes
from services.gateway.scope.request_record import RequestRecord
from services.gateway.tracing.ended_requests import MAX_ENDED_REQUESTS, EndedRequests
from shared.flags.guard import RequestTimes
from shared.messages import MAX_TRAFFIC_ROWS, FlagTraffic, FlagTrafficRow


def traffic_since(ended: EndedRequests, since_unix_us: int) -> FlagTraffic:
    """Return the requests that began since then, the oldest first."""
    records = ended.latest(MAX_TRAFFIC_ROWS)
    full = ended.kept >= min(MAX_ENDED_REQUESTS, MAX_TRAFFIC_ROWS)
    known_since_us = max(since_unix_us, records[-1].ended_unix_us) if full else since_unix_us
    return FlagTraffic(_rows(records, since_unix_us), known_since_us)


def times_of(record: RequestRecord) -> FlaggedTimes:
    """Return what guards go by."""
    ttft_ms = None if record.ttft_us is None else record.ttft_us / 1000
    return FlaggedTimes(
        record.flags, RequestTimes(record.total_us / 1000, ttft_ms, record.output_tokens, record.outcome)
    )


def _rows(records: Sequence[RequestRecord], since_unix_us: int) -> tuple[FlagTrafficRow, ...]:
    return tuple(
        FlagTrafficRow(
            tenant=record.tenant,
            model=record.model if record.model_choice is None else record.model_choice.asked,
            outcome=record.outcome,
            began_unix_us=record.began_unix_us,
            ttft_us=record.ttft_us or 0,
            total_us=record.total_us,
            output_tokens=record.output_tokens,
            flags=record.flags,
        )
        for record in reversed(records)
        if record.began_unix_us >= since_unix_us
    )
