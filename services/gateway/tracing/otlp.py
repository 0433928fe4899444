"""Write spans as OTLP over HTTP wants them: the JSON encoding of `ExportTraceServiceRequest`.

Written here rather than taken from OpenTelemetry's SDK: the spans are made after the fact, for several
services at once, which the SDK has no way to say; and every collector takes this encoding, in which ids are
hex and 64-bit numbers are text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from services.gateway.tracing.spans import HopSpan, Value

SCOPE = "penstock"
ERROR_STATUS = 2


def encode_export(requests: Iterable[bytes]) -> bytes:
    """Return the body of an export of requests, each as `encode_request` has made it."""
    return b'{"resourceSpans": [' + b", ".join(requests) + b"]}"


def encode_request(spans: Iterable[HopSpan], version: str) -> bytes:
    """Return the part of an export that is one request's: its spans by whose they are."""
    of_services: dict[tuple[str, str], list[HopSpan]] = {}
    for span in spans:
        of_services.setdefault((span.role, span.instance), []).append(span)
    parts = [json.dumps(_of_service(*who, version, own)) for who, own in of_services.items()]
    return ", ".join(parts).encode()


def rejected_spans(answer: bytes) -> int:
    """Return how many spans the collector has not taken, by its answer; 0 where it says nothing of it."""
    try:
        found = json.loads(answer)["partialSuccess"]["rejectedSpans"]
        return max(0, int(found))
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0


def _of_service(role: str, instance: str, version: str, spans: list[HopSpan]) -> dict[str, Any]:
    resource = {
        "service.namespace": "penstock",
        "service.name": f"penstock-{role}",
        "service.instance.id": instance,
        "service.version": version,
    }
    return {
        "resource": {"attributes": _attributes(resource)},
        "scopeSpans": [
            {"scope": {"name": SCOPE, "version": version}, "spans": [_encoded(span) for span in spans]}
        ],
    }


def _encoded(span: HopSpan) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_unix_ns),
        "endTimeUnixNano": str(span.end_unix_ns),
        "attributes": _attributes(span.attributes),
    }
    if span.parent_id:
        encoded["parentSpanId"] = span.parent_id
    if span.error:
        encoded["status"] = {"code": ERROR_STATUS, "message": span.error}
    return encoded


def _attributes(values: Any) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in values.items()]


def _value(value: Value) -> dict[str, Any]:
    match value:
        case str():
            return {"stringValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
    return {"arrayValue": {"values": [_value(each) for each in value]}}
