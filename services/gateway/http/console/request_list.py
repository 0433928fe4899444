"""Show the requests that run and those that have ended, for the console, with their timelines."""

from __future__ import annotations

from typing import Any

from services.gateway.scope.recent_requests import RecentRequests, RequestSummary
from services.gateway.session.session import Session
from services.gateway.session.session_registry import SessionRegistry
from shared.roles import hop_of_phase

MAX_SHOWN_LIVE = 50
"""The most running requests in one answer, those that came first; `live` counts all."""
MAX_SHOWN_ENDED = 50
"""The most ended requests in one answer, the newest ones."""


def request_list(registry: SessionRegistry, recent: RecentRequests) -> dict[str, Any]:
    return {
        "live": registry.live_count,
        "running": [_running(session) for session in registry.live_sessions(MAX_SHOWN_LIVE)],
        "ended": [_ended(summary) for summary in recent.newest(MAX_SHOWN_ENDED)],
        "left_out": recent.left_out,
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


def _ended(summary: RequestSummary) -> dict[str, Any]:
    return {
        "id": summary.request_id,
        "tenant": summary.tenant,
        "model": summary.model,
        "outcome": summary.outcome,
        "error": summary.error,
        "prompt_tokens": summary.prompt_tokens,
        "cached_tokens": summary.cached_tokens,
        "tokens": summary.tokens,
        "replacements": summary.replacements,
        "ended_unix_ms": summary.ended_unix_ms,
        "ttft_us": summary.ttft_us,
        "total_us": summary.total_us,
        "route": [{"role": role, "instance": instance} for role, instance in summary.route],
        "phases": [
            {
                "name": phase.name,
                "hop": hop_of_phase(phase.name),
                "start_us": phase.start_us,
                "duration_us": phase.duration_us,
            }
            for phase in summary.phases
        ],
    }
