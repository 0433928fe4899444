"""Report what a console shows of this gateway: its requests, and what the last minutes were like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from services.gateway.context import SessionContext
from services.gateway.scope.recent_latencies import RateSlot
from services.gateway.scope.request_record import RequestRecord
from services.gateway.session.session import Session
from services.gateway.tracing.ended_requests import SENTENCE_CHARS, VIEWS, EndedRequests
from shared.messages import (
    ConsoleReport,
    EndedRow,
    RequestPlace,
    RunningRow,
    SlotCounts,
    TimedPhase,
)

MAX_SHOWN_LIVE = 50
"""The most running requests in one answer, those that came first; `live` counts all."""
MAX_SHOWN_LATEST = 50
"""The most ended requests in one answer that are there as the newest ones."""
MAX_SHOWN_TAIL = 20
"""The most ended requests in one answer of each other kind: failed, slow to begin, slow in all."""


def console_report(context: SessionContext, live: int, running: Iterable[Session]) -> ConsoleReport:
    """Return the `running` ones of all that are `live`, those that have ended, and the slots of the last
    minutes."""
    return ConsoleReport(
        live=live,
        running=tuple(_running(session) for session in running),
        ended=tuple(ended_requests(context.ended_requests)),
        slots=tuple(slot_counts(context.latencies.slots())),
    )


def ended_requests(ended: EndedRequests) -> Iterator[EndedRow]:
    """Yield those that are shown, each once: the failed and the slowest ones of the last minutes too, however
    many have ended since."""
    shown = (
        ended.latest(MAX_SHOWN_LATEST),
        ended.tail.failed(MAX_SHOWN_TAIL),
        ended.tail.slowest_starts(MAX_SHOWN_TAIL),
        ended.tail.slowest(MAX_SHOWN_TAIL),
    )
    views: dict[str, list[str]] = {}
    records: dict[str, RequestRecord] = {}
    for view, found in zip(VIEWS, shown, strict=True):
        for record in found:
            records[record.request_id] = record
            views.setdefault(record.request_id, []).append(view)
    return (_ended(record, tuple(views[name])) for name, record in records.items())


def slot_counts(slots: Sequence[RateSlot]) -> Iterator[SlotCounts]:
    """Yield the slots in which something was counted; the last of them all is the one that is not over."""
    for slots_ago, slot in enumerate(reversed(slots)):
        if slot.outcomes or slot.tokens:
            yield SlotCounts(
                slots_ago,
                tuple(slot.outcomes.items()),
                slot.tokens,
                _bins(slot.ttft),
                _bins(slot.inter_token),
            )


def _bins(histogram: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    return tuple(histogram.items())


def _running(session: Session) -> RunningRow:
    state = session.state
    return RunningRow(
        id=session.request_id,
        tenant=session.request.tenant,
        model=state.model,
        phase=state.phase.value,
        prompt_tokens=state.log.prompt_tokens,
        tokens=len(state.log.ids),
        replacements=state.replacements,
    )


def _ended(record: RequestRecord, views: tuple[str, ...]) -> EndedRow:
    return EndedRow(
        id=record.request_id,
        views=views,
        tenant=record.tenant,
        model=record.model,
        outcome=record.outcome,
        error=record.error_text[:SENTENCE_CHARS],
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        tokens=record.output_tokens,
        replacements=record.replacements,
        ended_unix_ms=record.ended_unix_us // 1000,
        ttft_us=record.ttft_us,
        total_us=record.total_us,
        route=tuple(RequestPlace(role, instance) for role, instance in record.route),
        phases=tuple(TimedPhase(phase.name, phase.start_us, phase.duration_us) for phase in record.phases),
    )
