"""The report of a request that is over counts it."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from services.gateway.scope import report
from services.gateway.scope.outcome import Outcome
from services.gateway.scope.report import count_outcome, report_end
from services.gateway.scope.request_timeline import RequestTimeline
from shared.sampling.parameters import SamplingParams
from shared.telemetry.bounded_label import MAX_LABEL_VALUES, OTHER, BoundedLabel
from tests.support.clock import FakeClock
from tests.support.metric import value
from tests.support.records import make_record

BUCKET = "00016"
FINISHED = Outcome.ended("stop", SamplingParams())


def test_no_client_moves_what_the_fleet_is_measured_by() -> None:
    clock = FakeClock()
    timeline = RequestTimeline(clock.unix_us() - 59_000_000, clock)
    clock.advance(0.25)
    timeline.add_row(())
    timeline.mark_delivered()
    clock.advance(0.25)
    timeline.close_timeline()
    record = make_record(
        model="told",
        prompt_tokens=5,
        phases=tuple(timeline.measured_phases()),
        ttft_us=timeline.measured_ttft_us,
        total_us=timeline.measured_total_us,
    )
    names = ("penstock_time_to_first_token_seconds_sum", "penstock_e2e_request_latency_seconds_sum")
    hops = {"hop": "client", "phase": "client"}
    before = [value(name, model="told", prompt_tokens=BUCKET) for name in names]
    of_client = value("penstock_hop_seconds_count", **hops)
    report_end(record, FINISHED)
    after = [value(name, model="told", prompt_tokens=BUCKET) for name in names]
    assert [now - then for now, then in zip(after, before, strict=True)] == [0.25, 0.5]
    assert value("penstock_hop_seconds_count", **hops) == of_client


def test_the_line_at_the_end_names_tenant_trace_and_every_worker() -> None:
    record = make_record(tenant="acme", client_id="theirs-1")
    with capture_logs() as lines:
        report_end(record, FINISHED)
    (line,) = lines
    assert line["tenant"] == "acme"
    assert line["client_id"] == "theirs-1"
    assert line["trace_id"] == record.span.trace_id
    assert line["workers"] == "tokenizer-0 prefill-0 decode-0 detokenizer-0"


def test_the_tokens_of_a_request_are_its_tenants() -> None:
    def used(kind: str) -> float:
        return value("penstock_tenant_tokens_total", tenant="uses", model="m", kind=kind)

    kinds = ("prompt", "cached", "generated")
    before = [used(kind) for kind in kinds]
    report_end(
        make_record(tenant="uses", model="m", prompt_tokens=40, cached_tokens=16, output_tokens=3), FINISHED
    )
    assert [used(kind) - was for kind, was in zip(kinds, before, strict=True)] == [40, 16, 3]
    report_end(make_record(tenant="uses", model="m", prompt_tokens=40, output_tokens=0), FINISHED)
    assert used("prompt") - before[0] == 40  # nothing of it was answered


def test_a_request_is_counted_for_its_model_endpoint_and_tenant() -> None:
    labels = {"outcome": "finished", "model": "m", "endpoint": "chat", "tenant": "counted"}
    before = value("penstock_requests_total", **labels)
    count_outcome(FINISHED, model="m", endpoint="chat", tenant="counted")
    assert value("penstock_requests_total", **labels) == before + 1


def test_tenants_beyond_the_limit_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "TENANTS", BoundedLabel(most=1))
    labels = {"outcome": "finished", "model": "", "endpoint": "grpc"}
    before = value("penstock_requests_total", tenant=OTHER, **labels)
    for tenant in ("first-one", "second-one", "first-one", "third-one"):
        count_outcome(FINISHED, endpoint="grpc", tenant=tenant)
    assert value("penstock_requests_total", tenant=OTHER, **labels) == before + 2
    assert value("penstock_requests_total", tenant="second-one", **labels) == 0


def test_a_bounded_label_has_so_many_values_and_no_more() -> None:
    label = BoundedLabel()
    kept = [label.label(f"t{number}") for number in range(MAX_LABEL_VALUES + 1)]
    assert kept[-2:] == [f"t{MAX_LABEL_VALUES - 1}", OTHER]
    assert label.label("t0") == "t0"
    assert label.label("") == ""


def test_an_answer_is_within_what_was_expected_of_it_or_longer() -> None:
    def counted(result: str) -> float:
        return value("penstock_expected_answers_total", model="expected", result=result)

    before = [counted("within"), counted("longer")]
    for tokens in (10, 11):
        report_end(make_record(model="expected", output_tokens=tokens, most_expected_tokens=10), FINISHED)
    report_end(make_record(model="expected", output_tokens=10), FINISHED)  # nobody expected anything
    assert [counted("within") - before[0], counted("longer") - before[1]] == [1, 1]
