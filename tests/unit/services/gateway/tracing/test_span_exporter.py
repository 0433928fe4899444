"""Spans reach a real collector over HTTP, and one that is slow or away costs spans alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services.gateway.config import GatewayConfig
from services.gateway.tracing import span_exporter
from services.gateway.tracing.collector_access import CollectorAccess
from services.gateway.tracing.otlp import rejected_spans
from services.gateway.tracing.span_exporter import (
    MAX_BATCH_REQUESTS,
    MAX_QUEUED_REQUESTS,
    MAX_TRIES,
    SpanExporter,
)
from services.launcher.network.ports import free_ports
from shared.telemetry.trace_context import new_trace
from tests.support.collector import CALLER, Collector, collector
from tests.support.metric import value
from tests.support.records import PHASES, make_record
from tests.support.wait import until

TRACED = "penstock_traced_requests_total"


def access(endpoint: str) -> CollectorAccess:
    found = CollectorAccess.of(GatewayConfig(otlp_endpoint=endpoint), {})
    assert found is not None
    return found


@pytest.fixture
def collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector; what it cannot take now is tried again at once."""
    monkeypatch.setattr(span_exporter, "FIRST_WAIT_S", 0.0)
    with collector() as running:
        yield running


async def test_a_collector_gets_every_span_of_a_request(collecting: Collector) -> None:
    exporter = SpanExporter(access(collecting.address), "gateway-0")
    exporter.start()
    record = make_record(span=CALLER.child(), parent_span_id=CALLER.span_id)
    exporter.add(record)
    await until(lambda: collecting.spans or collecting.broken)
    exporter.close()
    assert collecting.broken == []
    assert {span.name for span in collecting.spans} == {
        "chat test-model",
        "attempt 1",
        *(phase.name for phase in PHASES),
    }
    ids = {span.span_id for span in collecting.spans}
    assert {span.parent_id for span in collecting.spans} <= {*ids, CALLER.span_id}
    (root,) = collecting.named("chat test-model")
    assert (root.service, root.instance, root.trace_id) == (
        "penstock-gateway",
        "gateway-0",
        CALLER.trace_id,
    )
    assert root.attributes["gen_ai.usage.input_tokens"] == 40
    assert collecting.named("prefill.compute")[0].service == "penstock-prefill"


async def test_what_a_collector_cannot_take_now_is_sent_again(collecting: Collector) -> None:
    collecting.statuses = [503, 429]
    before = value(TRACED, result="sent")
    exporter = SpanExporter(access(collecting.address), "gateway-0")
    exporter.start()
    exporter.add(make_record())
    await until(lambda: value(TRACED, result="sent") == before + 1)
    exporter.close()
    assert (collecting.exports, len(collecting.named("decode"))) == (3, 1)


@pytest.mark.parametrize(
    ("statuses", "result", "exports"), [([400], "refused", 1), ([503] * MAX_TRIES, "unreachable", MAX_TRIES)]
)
async def test_spans_that_a_collector_does_not_take_are_counted_and_the_next_ones_sent(
    collecting: Collector, statuses: list[int], result: str, exports: int
) -> None:
    collecting.statuses = list(statuses)
    before = value(TRACED, result=result)
    exporter = SpanExporter(access(collecting.address), "gateway-0")
    exporter.start()
    exporter.add(make_record())
    await until(lambda: value(TRACED, result=result) == before + 1)
    assert collecting.exports == exports
    exporter.add(make_record(request_id="gateway-0.next"))
    await until(lambda: collecting.spans)
    exporter.close()
    assert collecting.named("chat test-model")[0].attributes["gen_ai.response.id"] == "gateway-0.next"


async def test_a_collector_that_is_not_there_costs_spans_alone(collecting: Collector) -> None:
    (port,) = free_ports("127.0.0.1", 1)
    before = value(TRACED, result="unreachable")
    exporter = SpanExporter(access(f"http://127.0.0.1:{port}"), "gateway-0")
    exporter.start()
    exporter.add(make_record())
    await until(lambda: value(TRACED, result="unreachable") == before + 1)
    exporter.close()
    assert collecting.exports == 0


def test_more_than_may_wait_are_dropped_and_counted() -> None:
    exporter = SpanExporter(access("http://127.0.0.1:9"), "gateway-0")  # never started: nothing is taken out
    before = value(TRACED, result="queue_full")
    for _ in range(MAX_QUEUED_REQUESTS):
        exporter.add(make_record())
    assert value(TRACED, result="queue_full") == before
    exporter.add(make_record())
    assert value(TRACED, result="queue_full") == before + 1


async def test_a_collector_that_does_not_answer_keeps_nobody(collecting: Collector) -> None:
    """The queue takes more while an export waits for its answer."""
    collecting.held.clear()
    exporter = SpanExporter(access(collecting.address), "gateway-0")
    exporter.start()
    for number in range(3):
        exporter.add(make_record(request_id=f"gateway-0.{number}"))
    assert collecting.spans == []
    collecting.held.set()
    await until(lambda: len(collecting.named("decode")) == 3)
    exporter.close()


@pytest.mark.parametrize(("requests", "exports"), [(MAX_BATCH_REQUESTS, 1), (MAX_BATCH_REQUESTS + 1, 2)])
async def test_an_export_has_so_many_requests_and_no_more(
    collecting: Collector, requests: int, exports: int
) -> None:
    exporter = SpanExporter(access(collecting.address), "gateway-0")
    for number in range(requests):
        exporter.add(make_record(request_id=f"gateway-0.{number}"))
    exporter.start()
    await until(lambda: len(collecting.named("decode")) == requests)
    exporter.close()
    assert (collecting.exports, len(collecting.named("decode"))) == (exports, requests)


def test_what_is_queued_at_the_end_is_sent(collecting: Collector) -> None:
    exporter = SpanExporter(access(collecting.address), "gateway-0")
    exporter.add(make_record())
    exporter.start()
    exporter.close()
    assert len(collecting.named("decode")) == 1


async def test_a_trace_that_its_caller_does_not_sample_has_no_spans(collecting: Collector) -> None:
    exporter = SpanExporter(access(collecting.address), "gateway-0")
    exporter.start()
    unsampled = new_trace()
    exporter.add(make_record(span=type(unsampled)(unsampled.trace_id, unsampled.span_id, sampled=False)))
    exporter.add(make_record(request_id="gateway-0.sampled"))
    await until(lambda: collecting.spans)
    exporter.close()
    ids = [span.attributes["gen_ai.response.id"] for span in collecting.named("chat test-model")]
    assert ids == ["gateway-0.sampled"]


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        (b'{"partialSuccess": {"rejectedSpans": "3"}}', 3),
        (b'{"partialSuccess": {"rejectedSpans": 2}}', 2),
        (b"{}", 0),
        (b"[]", 0),
        (b"\xff", 0),
        (b'{"partialSuccess": {"rejectedSpans": null}}', 0),
    ],
)
def test_a_collector_says_what_it_has_not_taken(answer: bytes, count: int) -> None:
    assert rejected_spans(answer) == count
