"""Report a request that is over: metrics, and one line in the log."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import structlog

from services.gateway.scope.outcome import Outcome
from services.gateway.scope.request_timeline import RequestTimeline
from services.gateway.scope.session_state import SessionState
from shared.errors import Overloaded
from shared.roles import ROLES, hop_of_phase
from shared.telemetry import metrics

log = structlog.get_logger()

LEFT_OUT = ("retrieval", "retrieval depth", "dense search", "rerank", "no corpus")
"""The parts that a request may have been answered without, as its client is told."""
FINISH_REASONS = {"stop_string": "stop"}
"""The reasons as clients are told them."""
UNKNOWN_HOP = "unknown"
"""The hop where the one that was full did not say who it is."""


def count_outcome(outcome: Outcome) -> None:
    """Once per request, whether it became a session or not."""
    metrics.REQUESTS.labels(outcome=outcome.word).inc()
    if isinstance(outcome.error, Overloaded):
        hop = outcome.error.hop if outcome.error.hop in ROLES else UNKNOWN_HOP
        metrics.SHED.labels(hop=hop, reason=outcome.error.reason).inc()


def count_degraded(what: str) -> None:
    """A request goes on with less, or with everything where `what` is empty."""
    if what:
        metrics.DEGRADED_REQUESTS.labels(what=what if what in LEFT_OUT else "other").inc()


def count_tokens(state: SessionState, new: int) -> None:
    """`new` tokens are in the log; with the first ones the prompt has been answered."""
    if len(state.log.ids) == new:
        metrics.PROMPT_TOKENS.labels(model=state.model).inc(state.log.prompt_tokens)
    _count_generated(state.model)(new)


@cache
def _count_generated(model: str) -> Callable[[int], None]:
    """Looked up once per model, not for every token."""
    return metrics.GENERATION_TOKENS.labels(model=model).inc


def report_end(request_id: str, outcome: Outcome, state: SessionState, timeline: RequestTimeline) -> None:
    """Once per request, after its call has ended, so that no client waits for it.

    What a client says of the time before is in its own timeline alone: what all are measured by is measured
    here.
    """
    count_outcome(outcome)
    if outcome.finish:
        reason = FINISH_REASONS.get(outcome.finish, outcome.finish)
        metrics.FINISHED_REQUESTS.labels(model=state.model, finish_reason=reason).inc()
    bucket = metrics.prompt_bucket(state.log.prompt_tokens)
    ttft_us, total_us = timeline.measured_ttft_us, timeline.measured_total_us
    if ttft_us is not None:
        metrics.TIME_TO_FIRST_TOKEN.labels(model=state.model, prompt_tokens=bucket).observe(ttft_us / 1e6)
    metrics.E2E_REQUEST_LATENCY.labels(model=state.model, prompt_tokens=bucket).observe(total_us / 1e6)
    for phase in timeline.measured_phases():
        metrics.HOP_SECONDS.labels(hop=hop_of_phase(phase.name), phase=phase.name).observe(
            phase.duration_us / 1e6
        )
    log.info(
        "request_ended",
        request_id=request_id,
        model=state.model,
        outcome=outcome.word,
        error="" if outcome.error is None else str(outcome.error),
        tokens=len(state.log.ids),
        replacements=state.replacements,
        ttft_us=ttft_us,
        total_us=total_us,
    )
