"""Make spans of a request's record: the request, each attempt to run it, each phase at whoever it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from services.gateway.scope.request_record import Attempt, RequestRecord
from shared.roles import ROLES, hop_of_phase
from shared.telemetry.timeline import Phase
from shared.telemetry.trace_context import new_span_id

INTERNAL, SERVER = 1, 2
"""The kinds of spans, by their numbers in OTLP: a part of a process's work, and an answer to somebody."""
GATEWAY = "gateway"
FINISH_REASONS = {"stop_string": "stop"}

Value = str | int | float | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HopSpan:
    """`role` and `instance` are whose time it was; `error` says why it failed, "" where it did not."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    role: str
    instance: str
    start_unix_ns: int
    end_unix_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str = ""


def spans_of(record: RequestRecord, gateway: str) -> list[HopSpan]:
    """Return the spans of the request, parents before children. Names are those of the GenAI conventions
    where these have one; `gateway` is whose request it was."""
    attempts = [_attempt_span(record, attempt, gateway) for attempt in record.attempts]
    parents = dict(zip(record.attempts, attempts, strict=True))
    spans = [_request_span(record, gateway), *attempts]
    for phase in record.phases:
        attempt = record.attempt_at(phase)
        parent = record.span.span_id if attempt is None else parents[attempt].span_id
        hop = _phase_span(record, phase, parent, gateway)
        spans += [hop, *_replaced_asks(record, phase, hop)]
    return spans


def _request_span(record: RequestRecord, gateway: str) -> HopSpan:
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": record.operation,
        "gen_ai.provider.name": "penstock",
        "gen_ai.request.model": record.model if record.model_choice is None else record.model_choice.asked,
        "gen_ai.request.max_tokens": record.max_tokens,
        "gen_ai.request.temperature": record.temperature,
        "gen_ai.request.top_p": record.top_p,
        "gen_ai.request.seed": record.seed,
        "gen_ai.response.id": record.request_id,
        "gen_ai.response.model": record.model,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "penstock.outcome": record.outcome,
        "penstock.replacements": record.replacements,
    }
    optional = {
        "penstock.client_request_id": record.client_id,
        "penstock.tenant": record.tenant,
        "penstock.endpoint": record.endpoint,
        "penstock.model_choice": "" if record.model_choice is None else record.model_choice.sentence,
        "penstock.flags": " ".join(record.flags),
        "error.type": record.error,
        "penstock.error.hop": record.hop,
    }
    attributes |= {name: value for name, value in optional.items() if value}
    if record.finish:
        attributes["gen_ai.response.finish_reasons"] = (FINISH_REASONS.get(record.finish, record.finish),)
    if record.ttft_us is not None:
        attributes["penstock.time_to_first_token_us"] = record.ttft_us
    name = f"{record.operation} {record.model}".strip()
    start_ns, end_ns = _unix_ns(record, 0), _unix_ns(record, record.total_us)
    span = record.span
    return HopSpan(
        *(span.trace_id, span.span_id, record.parent_span_id, name, SERVER, GATEWAY, gateway),
        *(start_ns, end_ns, attributes, record.error_text),
    )


def _attempt_span(record: RequestRecord, attempt: Attempt, gateway: str) -> HopSpan:
    """One that was replaced has an error: what it did was done again elsewhere."""
    attributes: dict[str, Value] = {"penstock.epoch": attempt.epoch}
    attributes |= {f"penstock.{role}.instance": instance for role, instance in attempt.workers}
    if attempt.why:
        attributes["error.type"] = attempt.why
    return HopSpan(
        *(record.span.trace_id, new_span_id(), record.span.span_id, f"attempt {attempt.epoch}"),
        *(INTERNAL, GATEWAY, gateway),
        *(_unix_ns(record, attempt.start_us), _unix_ns(record, attempt.end_us), attributes),
        f"replaced: {attempt.why}" if attempt.why else "",
    )


def _phase_span(record: RequestRecord, phase: Phase, parent_id: str, gateway: str) -> HopSpan:
    """A phase at another service is in that one's name; the way between them is the gateway's."""
    role, instance = hop_of_phase(phase.name), record.instance_of(phase)
    elsewhere = role in ROLES and role != GATEWAY and instance
    return HopSpan(
        *(record.span.trace_id, new_span_id(), parent_id, phase.name),
        *((SERVER, role, instance) if elsewhere else (INTERNAL, GATEWAY, gateway)),
        *(_unix_ns(record, phase.start_us), _unix_ns(record, phase.start_us + phase.duration_us)),
        {"penstock.hop": role},
    )


def _replaced_asks(record: RequestRecord, phase: Phase, hop: HopSpan) -> Iterator[HopSpan]:
    """Yield a span for each instance that was asked in the phase and did not give the answer."""
    end_us = phase.start_us + phase.duration_us
    role = hop_of_phase(phase.name)
    asked = [each for each in record.asked if each.role == role and phase.start_us <= each.start_us < end_us]
    for each, later in pairwise(asked):
        yield HopSpan(
            *(record.span.trace_id, new_span_id(), hop.span_id, f"ask {each.instance}"),
            *(SERVER, role, each.instance),
            *(_unix_ns(record, each.start_us), _unix_ns(record, later.start_us)),
            {"penstock.hop": role},
            f"replaced: {later.instance} was asked",
        )


def _unix_ns(record: RequestRecord, at_us: int) -> int:
    return (record.began_unix_us + at_us) * 1000
