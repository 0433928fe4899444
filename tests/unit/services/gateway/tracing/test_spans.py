"""Spans of a record: every time is somebody's, under the right parent."""

from __future__ import annotations

from dataclasses import replace

from services.gateway.scope.request_record import AskedInstance, Attempt
from services.gateway.tracing.spans import SERVER, HopSpan, spans_of
from shared.telemetry.timeline import Phase
from tests.support.collector import CALLER
from tests.support.records import WORKERS, make_record

MOVED = (("prefill", "prefill-1"), ("decode", "decode-1"), ("detokenizer", "detokenizer-0"))


def by_name(spans: list[HopSpan]) -> dict[str, HopSpan]:
    return {span.name: span for span in spans}


def test_a_request_is_a_child_of_its_clients_span_and_its_attempt_one_of_it() -> None:
    record = make_record(span=CALLER.child(), parent_span_id=CALLER.span_id)
    spans = by_name(spans_of(record, "gateway-0"))
    root, attempt = spans["chat test-model"], spans["attempt 1"]
    assert (root.trace_id, root.span_id, root.parent_id) == (
        CALLER.trace_id,
        record.span.span_id,
        CALLER.span_id,
    )
    assert root.kind == SERVER
    assert attempt.parent_id == root.span_id
    assert spans["prefill.compute"].parent_id == attempt.span_id
    assert spans["tokenize"].parent_id == root.span_id
    assert {span.trace_id for span in spans.values()} == {CALLER.trace_id}


def test_a_phase_is_in_the_name_of_whoever_it_was_at() -> None:
    spans = by_name(spans_of(make_record(), "gateway-0"))
    assert {name: (span.role, span.instance) for name, span in spans.items()} == {
        "chat test-model": ("gateway", "gateway-0"),
        "attempt 1": ("gateway", "gateway-0"),
        "admit": ("gateway", "gateway-0"),
        "tokenize": ("tokenizer", "tokenizer-0"),
        "route": ("gateway", "gateway-0"),
        "prefill.queue": ("prefill", "prefill-0"),
        "prefill.compute": ("prefill", "prefill-0"),
        "detokenize": ("detokenizer", "detokenizer-0"),
        "bus": ("gateway", "gateway-0"),
        "deliver": ("gateway", "gateway-0"),
        "kv.transfer": ("decode", "decode-0"),
        "decode": ("decode", "decode-0"),
        "finish": ("gateway", "gateway-0"),
    }


def test_phases_of_a_request_fill_it_without_a_gap() -> None:
    record = make_record()
    root, _, *phases = spans_of(record, "gateway-0")
    assert [span.start_unix_ns for span in phases] == [
        root.start_unix_ns,
        *[span.end_unix_ns for span in phases[:-1]],
    ]
    assert phases[-1].end_unix_ns == root.end_unix_ns == (record.began_unix_us + record.total_us) * 1000


def test_work_that_was_replaced_is_an_attempt_of_its_own_with_the_reason() -> None:
    phases = (
        Phase("admit", 0, 100),
        Phase("route", 100, 100),
        Phase("prefill.compute", 200, 300),
        Phase("deliver", 500, 10),
        Phase("decode", 510, 400),
        Phase("route", 910, 50),
        Phase("prefill.compute", 960, 300),
        Phase("decode", 1260, 40),
        Phase("finish", 1300, 5),
    )
    attempts = (Attempt(1, WORKERS, 200, 910, "unavailable"), Attempt(2, MOVED, 960, 1305))
    spans = spans_of(make_record(phases=phases, attempts=attempts, total_us=1305), "gateway-0")
    first, second = by_name(spans)["attempt 1"], by_name(spans)["attempt 2"]
    assert (first.error, second.error) == ("replaced: unavailable", "")
    assert first.attributes["error.type"] == "unavailable"
    assert second.attributes["penstock.decode.instance"] == "decode-1"
    assert [(s.parent_id, s.instance) for s in spans if s.name == "decode"] == [
        (first.span_id, "decode-0"),
        (second.span_id, "decode-1"),
    ]
    routes = [span.parent_id for span in spans if span.name == "route"]
    assert routes == [spans[0].span_id] * 2


def test_an_instance_that_did_not_answer_has_a_span_until_the_next_one_was_asked() -> None:
    asked = (AskedInstance("tokenizer", "tokenizer-1", 110), AskedInstance("tokenizer", "tokenizer-0", 250))
    spans = by_name(spans_of(make_record(asked=asked), "gateway-0"))
    lost, phase = spans["ask tokenizer-1"], spans["tokenize"]
    assert (lost.parent_id, lost.instance, phase.instance) == (phase.span_id, "tokenizer-1", "tokenizer-0")
    assert lost.error == "replaced: tokenizer-0 was asked"
    assert lost.end_unix_ns - lost.start_unix_ns == 140_000


def test_attributes_are_those_of_the_genai_conventions() -> None:
    root = spans_of(make_record(finish="stop_string", tenant="acme"), "gateway-0")[0]
    wanted = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "penstock",
        "gen_ai.request.model": "test-model",
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.id": "gateway-0.abc",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 16,
        "penstock.tenant": "acme",
    }
    assert wanted.items() <= dict(root.attributes).items()


def test_a_request_that_failed_says_so_and_where() -> None:
    failed = replace(
        make_record(attempts=(), phases=(Phase("admit", 0, 9100),)),
        outcome="failed",
        finish="",
        error="unavailable",
        error_text="decode: no room",
        hop="decode",
    )
    root, admit = spans_of(failed, "gateway-0")
    assert (root.error, root.attributes["error.type"]) == ("decode: no room", "unavailable")
    assert root.attributes["penstock.error.hop"] == "decode"
    assert admit.parent_id == root.span_id
