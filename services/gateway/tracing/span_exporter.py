"""Send the spans of requests that have ended to a collector: from a thread, with a bounded queue before it.

Whoever ends a request hands over its record and goes on. A collector that is slow or away costs spans, which
are counted, and nothing else.
"""

from __future__ import annotations

import http.client
import threading
from collections import deque

import structlog

from services.gateway.scope.request_record import RequestRecord
from services.gateway.tracing.call_spans import spans_of_call
from services.gateway.tracing.collector_access import CollectorAccess
from services.gateway.tracing.otlp import encode_export, encode_request, rejected_spans
from services.gateway.tracing.spans import spans_of
from services.gateway.tracing.text_call_record import TextCallRecord
from shared.telemetry import metrics
from shared.telemetry.build import VERSION

log = structlog.get_logger()

MAX_QUEUED_REQUESTS = 2048
"""The most requests whose spans wait for the collector; those of more are dropped and counted."""
MAX_BATCH_REQUESTS = 64
"""The most requests of one export: about a megabyte of JSON."""
MAX_TRIES = 4
"""An export that the collector cannot take now is tried so often, with longer and longer waits between."""
FIRST_WAIT_S = 1.0
PAUSE_S = 0.001
"""Spans are made of one request at a time, which takes half a millisecond, with such a pause before: the loop
that relays tokens waits for no more than that."""
EXPORT_TIMEOUT_S = 5.0
"""The longest silence of a collector."""
CLOSE_TIMEOUT_S = 2.0
"""The longest time, when a gateway ends, for sending what is queued."""
MAX_ANSWER_BYTES = 64 << 10
"""More of a collector's answer is not read."""
RETRIED_STATUSES = frozenset({429, 502, 503, 504})
"""The statuses with which a collector says that it may take the same later, as OTLP has them."""

Traced = RequestRecord | TextCallRecord


class SpanExporter:
    """`gateway` is the instance whose requests these are. `start` it, and `close` it in a thread."""

    def __init__(self, collector: CollectorAccess, gateway: str) -> None:
        self._collector = collector
        self._gateway = gateway
        self._waiting: deque[Traced] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, record: Traced) -> None:
        """Queue the spans of a request, or of another call; never waits. One whose trace is not sampled has
        none."""
        if not record.span.sampled:
            return
        with self._changed:
            if self._closing or len(self._waiting) >= MAX_QUEUED_REQUESTS:
                metrics.TRACED_REQUESTS.labels(result="queue_full").inc()
                return
            self._waiting.append(record)
            self._changed.notify()

    def close(self) -> None:
        """Send what is queued, bounded; then end."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(CLOSE_TIMEOUT_S)

    # ---- in the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while batch := self._next_batch():
            result = self._export(encode_export(map(self._encoded, batch)))
            metrics.TRACED_REQUESTS.labels(result=result).inc(len(batch))
            self._note(result)

    def _encoded(self, record: Traced) -> bytes:
        """Return the spans of a request, after a pause in which other threads have the interpreter."""
        self._closes_within(PAUSE_S)
        if isinstance(record, TextCallRecord):
            return encode_request(spans_of_call(record, self._gateway), VERSION)
        return encode_request(spans_of(record, self._gateway), VERSION)

    def _next_batch(self) -> list[Traced]:
        """Return what waits, once something does; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH_REQUESTS))]

    def _export(self, body: bytes) -> str:
        """Return how it ended: sent, refused, or unreachable after all tries."""
        for attempt in range(MAX_TRIES):
            status = self._post(body)
            if 200 <= status < 300:
                return "sent"
            if status and status not in RETRIED_STATUSES:
                return "refused"
            if attempt + 1 < MAX_TRIES and self._closes_within(FIRST_WAIT_S * 2**attempt):
                break
        return "unreachable"

    def _closes_within(self, wait_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._closing, wait_s)

    def _post(self, body: bytes) -> int:
        """Return the status of the collector's answer, 0 where there was none."""
        to = self._collector
        connection: http.client.HTTPConnection
        if to.tls is None:
            connection = http.client.HTTPConnection(to.host, to.port, timeout=EXPORT_TIMEOUT_S)
        else:
            connection = http.client.HTTPSConnection(
                to.host, to.port, timeout=EXPORT_TIMEOUT_S, context=to.tls
            )
        headers = {**to.headers, "Content-Type": "application/json"}
        try:
            connection.request("POST", to.path, body, headers)
            answer = connection.getresponse()
            if rejected := rejected_spans(answer.read(MAX_ANSWER_BYTES)):
                log.warning("spans_rejected", spans=rejected)
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()
        return answer.status

    def _note(self, result: str) -> None:
        """Say it once when the collector cannot be had, and once when it can again."""
        failing = result != "sent"
        if failing != self._failing:
            self._failing = failing
            said = "spans_lost" if failing else "spans_sent_again"
            log.warning(said, collector=self._collector.shown, result=result)
