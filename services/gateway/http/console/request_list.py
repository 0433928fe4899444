"""Show the requests that run and those that have ended, for the console, with their timelines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from services.gateway.scope.request_record import RequestRecord
from services.gateway.session.session import Session
from services.gateway.tracing.ended_requests import SENTENCE_CHARS, VIEWS, EndedRequests

MAX_SHOWN_LIVE = 50
"""The most running requests in one answer, those that came first; `live` counts all."""
MAX_SHOWN_LATEST = 50
"""The most ended requests in one answer that are there as the newest ones."""
MAX_SHOWN_TAIL = 20
"""The most ended requests in one answer of each other kind: failed, slow to begin, slow in all."""


def request_list(live: int, running: Iterable[Session], ended: EndedRequests) -> dict[str, Any]:
    """Return the `running` ones of all that are `live`, and those that have ended, each once: the failed and
    the slowest ones of the last minutes too, however many have ended since."""
    shown = (
        ended.latest(MAX_SHOWN_LATEST),
        ended.tail.failed(MAX_SHOWN_TAIL),
        ended.tail.slowest_starts(MAX_SHOWN_TAIL),
        ended.tail.slowest(MAX_SHOWN_TAIL),
    )
    return {
        "live": live,
        "running": [_running(session) for session in running],
        "ended": _ended_of(dict(zip(VIEWS, shown, strict=True))),
    }


def _running(session: Session) -> dict[str, Any]:
    state = session.state
    return {
        "id": session.request_id,
        "tenant": session.request.tenant,
        "model": state.model,
        "phase": state.phase.value,
        "prompt_tokens": state.log.prompt_tokens,
        "tokens": len(state.log.ids),
        "replacements": state.replacements,
    }


def _ended_of(views: Mapping[str, Iterable[RequestRecord]]) -> list[dict[str, Any]]:
    shown: dict[str, dict[str, Any]] = {}
    for view, records in views.items():
        for record in records:
            request = shown.get(record.request_id)
            if request is None:
                request = shown[record.request_id] = _ended(record)
            request["views"].append(view)
    return list(shown.values())


def _ended(record: RequestRecord) -> dict[str, Any]:
    return {
        "id": record.request_id,
        "views": [],
        "tenant": record.tenant,
        "model": record.model,
        "outcome": record.outcome,
        "error": record.error_text[:SENTENCE_CHARS],
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "tokens": record.output_tokens,
        "replacements": record.replacements,
        "ended_unix_ms": record.ended_unix_us // 1000,
        "ttft_us": record.ttft_us,
        "total_us": record.total_us,
        "route": [{"role": role, "instance": instance} for role, instance in record.route],
        "phases": [
            {"name": phase.name, "start_us": phase.start_us, "duration_us": phase.duration_us}
            for phase in record.phases
        ],
    }
