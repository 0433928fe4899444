"""Objectives: what can be said, and how sure a verdict is."""

from __future__ import annotations

import pytest

from services.cli.bench.report.latency_figures import all_figures
from services.cli.bench.report.service_level import ServiceLevel, judge
from tests.unit.services.cli.bench.records import call_record

RATES = {"errors": 0.02, "sheds": 0.0, "goodput": 3.0, "requests_per_s": 4.0, "output_tokens_per_s": 99.0}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ttft<3ms",
        "ttft_p98<3ms",
        "ttft_p99>3ms",
        "ttft_p99<3",
        "errors<1",
        "goodput<3",
        "ttft_p99<1.2.3s",
    ],
)
def test_what_is_no_objective_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write ttft_p99<300ms"):
        ServiceLevel.read(text)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("errors<2%", False),
        ("errors<2.1%", True),
        ("sheds<1%", True),
        ("goodput>3", False),
        ("goodput>2.9", True),
        ("output_tokens_per_s>98", True),
    ],
)
def test_rates_and_shares_are_strictly_within(text: str, kept: bool) -> None:
    (verdict,) = judge([ServiceLevel.read(text)], {}, RATES)
    assert (verdict.kept, verdict.sure) == (kept, True)


@pytest.mark.parametrize(
    ("limit", "kept", "sure"),
    [("120ms", True, True), ("0.0505s", True, False), ("49ms", False, False), ("20ms", False, True)],
)
def test_a_verdict_is_sure_where_the_whole_interval_is_on_its_side(
    limit: str, kept: bool, sure: bool
) -> None:
    records = [call_record(n, ttft_s=(n + 1) / 1000) for n in range(100)]
    (verdict,) = judge([ServiceLevel.read(f"ttft_p50<{limit}")], all_figures(records, 0), RATES)
    assert (verdict.kept, verdict.sure) == (kept, sure)


def test_a_load_without_an_answer_keeps_no_latency() -> None:
    (verdict,) = judge([ServiceLevel.read("ttft_p50<1s")], all_figures([], 0), RATES)
    assert (verdict.kept, verdict.sure) == (False, False)


def test_one_delivery_keeps_what_is_asked_of_gaps() -> None:
    alone = call_record(gaps_s=())
    assert ServiceLevel.read("itl_p99<1ms").kept_by(alone)
    assert ServiceLevel.read("tpot_p99<1ms").kept_by(alone)
    assert not ServiceLevel.read("ttua_p99<1s").kept_by(alone)
