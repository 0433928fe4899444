"""Make spans of a call that was no request: the call, and each instance that was asked for it."""

from __future__ import annotations

from services.gateway.tracing.spans import GATEWAY, SERVER, HopSpan, Value
from services.gateway.tracing.text_call_record import CallAsk, TextCallRecord
from shared.telemetry.trace_context import new_span_id


def spans_of_call(record: TextCallRecord, gateway: str) -> list[HopSpan]:
    """Return the spans of the call, its own first; `gateway` is whose call it was."""
    return [_call_span(record, gateway), *(_ask_span(record, ask) for ask in record.asks)]


def _call_span(record: TextCallRecord, gateway: str) -> HopSpan:
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": record.operation,
        "gen_ai.provider.name": "penstock",
        "penstock.call_id": record.call_id,
    }
    optional: dict[str, Value] = {
        "gen_ai.request.model": record.model,
        "gen_ai.data_source.id": record.corpus,
        "gen_ai.usage.input_tokens": record.input_tokens,
        "penstock.client_request_id": record.client_id,
        "penstock.tenant": record.tenant,
        "error.type": record.error,
        "penstock.error.hop": record.hop,
    }
    attributes |= {name: value for name, value in optional.items() if value}
    name = f"{record.operation} {record.model or record.corpus}".strip()
    span = record.span
    return HopSpan(
        *(span.trace_id, span.span_id, record.parent_span_id, name, SERVER, GATEWAY, gateway),
        *(_unix_ns(record, 0), _unix_ns(record, record.total_us), attributes, record.error_text),
    )


def _ask_span(record: TextCallRecord, ask: CallAsk) -> HopSpan:
    """Return the span of a question, in the name of who was asked; one without an answer has an error."""
    attributes: dict[str, Value] = {"penstock.hop": ask.role}
    if ask.error:
        attributes["error.type"] = ask.error
    return HopSpan(
        *(record.span.trace_id, new_span_id(), record.span.span_id, f"ask {ask.instance}"),
        *(SERVER, ask.role, ask.instance),
        *(_unix_ns(record, ask.start_us), _unix_ns(record, ask.end_us), attributes),
        f"no answer: {ask.error}" if ask.error else "",
    )


def _unix_ns(record: TextCallRecord, at_us: int) -> int:
    return (record.began_unix_us + at_us) * 1000
