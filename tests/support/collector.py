"""A collector, as far as an exporter of spans sees one: a real HTTP server that decodes OTLP in JSON."""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from shared.telemetry.trace_context import TraceContext
from tests.support.certificate import Certificate

SPAN_FIELDS = {
    *("traceId", "spanId", "parentSpanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano"),
    *("attributes", "status", "flags", "traceState", "events", "links"),
}
VALUE_FIELDS = {"stringValue": str, "intValue": str, "doubleValue": float, "boolValue": bool}


@dataclass(frozen=True, slots=True)
class CollectedSpan:
    """`service` and `instance` are those of the resource that the span came with."""

    service: str
    instance: str
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    error: str


class Collector:
    """Keep what has come. `statuses` are answered first, one to each export; then 200."""

    def __init__(self) -> None:
        self.spans: list[CollectedSpan] = []
        self.exports = 0
        self.headers: list[Message] = []
        """Those of each export."""
        self.statuses: list[int] = []
        self.broken: list[str] = []
        """Why a body was none of the protocol."""
        self.held = threading.Event()
        self.held.set()
        """Cleared: exports wait for their answer."""
        self.address = ""

    def named(self, name: str) -> list[CollectedSpan]:
        return [span for span in self.spans if span.name == name]

    def take(self, path: str, headers: Message, body: bytes) -> int:
        self.held.wait()
        self.exports += 1
        self.headers.append(headers)
        content_type = headers["Content-Type"]
        if self.statuses:
            return self.statuses.pop(0)
        try:
            assert path == "/v1/traces", path
            assert content_type == "application/json", content_type
            self.spans += decode_export(json.loads(body))
        except (AssertionError, KeyError, ValueError, TypeError) as error:
            self.broken.append(f"{type(error).__name__}: {error}")
            return 400
        return 200


@contextmanager
def collector(certificate: Certificate | None = None) -> Iterator[Collector]:
    """A collector that listens on a port of its own while this is open, with TLS where it has a
    certificate."""
    collecting = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = collecting.take(self.path, self.headers, body)
            self.send_response(status)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Say nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.certificate, certificate.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "http" if certificate is None else "https"
    collecting.address = f"{scheme}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collecting
    finally:
        collecting.held.set()
        server.shutdown()
        server.server_close()


def decode_export(message: Any) -> Iterator[CollectedSpan]:
    """Read an ExportTraceServiceRequest in JSON; raises for what the specification does not have."""
    assert set(message) == {"resourceSpans"}, set(message)
    for of_resource in message["resourceSpans"]:
        assert set(of_resource) <= {"resource", "scopeSpans", "schemaUrl"}, set(of_resource)
        resource = _attributes(of_resource["resource"]["attributes"])
        for of_scope in of_resource["scopeSpans"]:
            assert set(of_scope) <= {"scope", "spans", "schemaUrl"}, set(of_scope)
            assert set(of_scope["scope"]) <= {"name", "version", "attributes"}
            for span in of_scope["spans"]:
                yield _span(resource, span)


def _span(resource: dict[str, Any], span: dict[str, Any]) -> CollectedSpan:
    assert set(span) <= SPAN_FIELDS, set(span) - SPAN_FIELDS
    status = span.get("status", {})
    assert set(status) <= {"code", "message"}
    assert status.get("code", 0) in (0, 1, 2)
    assert span["kind"] in range(1, 6), span["kind"]
    return CollectedSpan(
        service=resource["service.name"],
        instance=resource["service.instance.id"],
        trace_id=_id(span["traceId"], 32),
        span_id=_id(span["spanId"], 16),
        parent_id=_id(span["parentSpanId"], 16) if "parentSpanId" in span else "",
        name=_text(span["name"]),
        kind=span["kind"],
        start_ns=_fixed64(span["startTimeUnixNano"]),
        end_ns=_fixed64(span["endTimeUnixNano"]),
        attributes=_attributes(span["attributes"]),
        error=status.get("message", "") if status.get("code") == 2 else "",
    )


def _attributes(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    assert all(set(pair) == {"key", "value"} for pair in pairs)
    names = [_text(pair["key"]) for pair in pairs]
    assert len(names) == len(set(names)), names
    return {name: _value(pair["value"]) for name, pair in zip(names, pairs, strict=True)}


def _value(value: dict[str, Any]) -> Any:
    ((kind, inner),) = value.items()
    if kind == "arrayValue":
        return [_value(each) for each in inner["values"]]
    assert isinstance(inner, VALUE_FIELDS[kind]), value
    return int(str(inner)) if kind == "intValue" else inner


def _id(text: str, chars: int) -> str:
    assert re.fullmatch(rf"[0-9a-f]{{{chars}}}", text), text
    assert text.strip("0"), text
    return text


def _fixed64(text: str) -> int:
    assert isinstance(text, str), text
    assert text.isdecimal(), text
    return int(text)


def _text(text: str) -> str:
    assert isinstance(text, str), text
    return text


CALLER = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
"""The span of a client, as the W3C specification shows one."""
