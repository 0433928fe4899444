"""Report a request that is over: metrics, and one line in the log."""

from __future__ import annotations

from collections import Counter

import structlog

from services.gateway.scope.outcome import Outcome
from services.gateway.scope.request_record import RequestRecord
from services.gateway.scope.session_state import SessionState
from shared.errors import Overloaded
from shared.messages import TRIMMED_PARTS
from shared.roles import ROLES, TARGET_ROLES, hop_of_phase
from shared.telemetry import metrics
from shared.telemetry.bounded_label import BoundedLabel
from shared.telemetry.labelled import labelled

log = structlog.get_logger()

LEFT_OUT = ("retrieval", "retrieval depth", "dense search", "rerank", "no corpus")
"""The parts that a request may have been answered without, as its client is told."""
FINISH_REASONS = {"stop_string": "stop"}
"""The reasons as clients are told them."""
UNKNOWN_HOP = "unknown"
"""The hop where the one that was full did not say who it is."""


MODELS = BoundedLabel()
TENANTS = BoundedLabel()


def count_outcome(outcome: Outcome, *, model: str = "", endpoint: str = "", tenant: str = "") -> None:
    """Once per request, whether it became a session or not; "" is what is not known of it."""
    labelled(metrics.REQUESTS, outcome.word, MODELS.label(model), endpoint, TENANTS.label(tenant)).inc()
    if isinstance(outcome.error, Overloaded):
        hop = outcome.error.hop if outcome.error.hop in ROLES else UNKNOWN_HOP
        metrics.SHED.labels(hop=hop, reason=outcome.error.reason).inc()


def count_degraded(what: str) -> None:
    """A request goes on with less, or with everything where `what` is empty."""
    if what:
        metrics.DEGRADED_REQUESTS.labels(what=what if what in LEFT_OUT else "other").inc()


def count_tokens(state: SessionState, new: int) -> None:
    """`new` tokens are in the log; with the first ones the prompt has been answered. `flush_tokens` comes
    before anybody may look."""
    if len(state.log.ids) == new:
        labelled(metrics.PROMPT_TOKENS, state.model).inc(state.log.prompt_tokens)
    _generated[state.model] += new


def count_generated(model: str, new: int) -> None:
    """`new` tokens of a model are in logs of which none of them is the first."""
    _generated[model] += new


def flush_tokens() -> None:
    """Show what was counted: once for the many rows of a message, as a metric costs more than an addition."""
    for model, tokens in _generated.items():
        labelled(metrics.GENERATION_TOKENS, model).inc(tokens)
    _generated.clear()


_generated: Counter[str] = Counter()
"""The tokens that no metric shows yet, by model."""


def report_end(record: RequestRecord, outcome: Outcome) -> None:
    """Once per request, after its call has ended, so that no client waits for it.

    What a client says of the time before is in its own timeline alone: what all are measured by is measured
    here.
    """
    count_outcome(outcome, model=record.model, endpoint=record.endpoint, tenant=record.tenant)
    if outcome.finish:
        reason = FINISH_REASONS.get(outcome.finish, outcome.finish)
        labelled(metrics.FINISHED_REQUESTS, record.model, reason).inc()
    _count_usage(record)
    _count_choice(record)
    _count_compute(record)
    _count_trimmed(record)
    _count_expected(record)
    bucket = metrics.prompt_bucket(record.prompt_tokens)
    if record.ttft_us is not None:
        labelled(metrics.TIME_TO_FIRST_TOKEN, record.model, bucket).observe(record.ttft_us / 1e6)
    if record.useful_us is not None:
        labelled(metrics.TIME_TO_USEFUL_ANSWER, record.model, bucket).observe(record.useful_us / 1e6)
    labelled(metrics.E2E_REQUEST_LATENCY, record.model, bucket).observe(record.total_us / 1e6)
    for phase in record.phases:
        seen = labelled(metrics.HOP_SECONDS, hop_of_phase(phase.name), phase.name)
        seen.observe(phase.duration_us / 1e6)
    log.info(
        "request_ended",
        request_id=record.request_id,
        **({"client_id": record.client_id} if record.client_id else {}),
        trace_id=record.span.trace_id,
        tenant=record.tenant,
        model=record.model,
        **({"model_choice": record.model_choice.sentence} if record.model_choice else {}),
        **({"flags": " ".join(record.flags)} if record.flags else {}),
        outcome=outcome.word,
        error=record.error_text,
        workers=" ".join(record.workers),
        tokens=record.output_tokens,
        replacements=record.replacements,
        ttft_us=record.ttft_us,
        total_us=record.total_us,
    )


def _count_choice(record: RequestRecord) -> None:
    """Count the model that a request got which did not simply name one."""
    choice = record.model_choice
    if choice is not None:
        metrics.MODEL_CHOICES.labels(
            asked=MODELS.label(choice.asked), model=MODELS.label(choice.model), by=choice.by
        ).inc()


def _count_compute(record: RequestRecord) -> None:
    """Count what workers have spent on a tenant's request, whatever became of it."""
    tenant = TENANTS.label(record.tenant)
    for role in TARGET_ROLES:
        for unit in ("core", "device"):
            if spent_us := record.counts[f"{role}_{unit}_us"]:
                labelled(metrics.TENANT_COMPUTE, tenant, record.model, role, unit).inc(spent_us / 1e6)
    if kib_s := record.counts["kv_kib_s"]:
        labelled(metrics.TENANT_KV, tenant, record.model).inc(kib_s * 1024)


def _count_trimmed(record: RequestRecord) -> None:
    """Count what was left out of a prompt."""
    for part in record.trimmed:
        what = part.what if part.what in TRIMMED_PARTS else "other"
        metrics.TRIMMED_REQUESTS.labels(what=what).inc()
        metrics.TRIMMED_TOKENS.labels(what=what, model=record.model).inc(part.tokens)


def _count_expected(record: RequestRecord) -> None:
    """Count whether an answer has kept to the length that it was not expected to exceed."""
    if record.finish and record.most_expected_tokens:
        longer = record.output_tokens > record.most_expected_tokens
        labelled(metrics.EXPECTED_ANSWERS, record.model, "longer" if longer else "within").inc()


def _count_usage(record: RequestRecord) -> None:
    """Count the tokens of a tenant's request: of its prompt once that has been answered, and those drawn."""
    if not record.output_tokens:
        return
    tenant = TENANTS.label(record.tenant)
    for kind, tokens in (
        ("prompt", record.prompt_tokens),
        ("cached", record.cached_tokens),
        ("fetched", record.counts["fetched_tokens"]),
        ("generated", record.output_tokens),
        ("reasoning", record.reasoning_tokens),
        ("kept", record.output_tokens if record.kept else 0),
        ("coalesced", record.coalesced_tokens),
        ("drafted", record.counts["draft_accepted"]),
    ):
        labelled(metrics.TENANT_TOKENS, tenant, record.model, kind).inc(tokens)
