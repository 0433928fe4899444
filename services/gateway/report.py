"""What is told about a request when it is over: metrics, and one line in the log."""

from __future__ import annotations

import structlog

from services.gateway.outcome import Outcome
from services.gateway.request_timeline import RequestTimeline
from services.gateway.session_state import SessionState
from shared.roles import hop_of_phase
from shared.telemetry import metrics

log = structlog.get_logger()


def report_end(request_id: str, outcome: Outcome, state: SessionState, timeline: RequestTimeline) -> None:
    """Once per request, after its call has ended, so that no client waits for it."""
    metrics.REQUESTS.labels(outcome=outcome.word).inc()
    bucket = metrics.prompt_bucket(state.log.prompt_tokens)
    if timeline.ttft_us is not None:
        metrics.TIME_TO_FIRST_TOKEN.labels(prompt_tokens=bucket).observe(timeline.ttft_us / 1e6)
    metrics.E2E_REQUEST_LATENCY.labels(prompt_tokens=bucket).observe(timeline.total_us / 1e6)
    for phase in timeline.phases():
        metrics.HOP_SECONDS.labels(hop=hop_of_phase(phase.name), phase=phase.name).observe(
            phase.duration_us / 1e6
        )
    log.info(
        "request_ended",
        request_id=request_id,
        outcome=outcome.word,
        error="" if outcome.error is None else str(outcome.error),
        tokens=len(state.log.ids),
        replacements=state.replacements,
        ttft_us=timeline.ttft_us,
        total_us=timeline.total_us,
    )
