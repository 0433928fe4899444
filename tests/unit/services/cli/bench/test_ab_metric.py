"""Metrics of a comparison: those of calls, of a server's phases and of its processes."""

from __future__ import annotations

import math

import pytest

from services.cli.bench.ab_metric import AbMetric
from services.cli.bench.report.load_summary import SummarySettings, summarize
from services.cli.bench.run.load import LoadResult
from services.cli.bench.run.server_watch import ServerUse
from tests.unit.services.cli.bench.records import QUIET, call_record

RECORDS = [call_record(ttft_s=0.1, gaps_s=(0.02,), phases_ms={"prefill.compute": 7.0})]
USED = ServerUse(cpu_s=0.5, peak_bytes=3_000_000, processes=2)


@pytest.mark.parametrize(
    ("name", "value", "lower"),
    [
        ("ttft_p50", 100.0, True),
        ("itl_p99.9", 20.0, True),
        ("phase:prefill.compute_p50", 7.0, True),
        ("cpu_ms_per_output_token", 250.0, True),
        ("peak_memory_mb", 3.0, True),
        ("output_tokens_per_s", 2 / 0.12, False),
    ],
)
def test_a_metric_has_its_value_and_what_is_better(name: str, value: float, lower: bool) -> None:
    summary = summarize(LoadResult(RECORDS, QUIET, server=USED), SummarySettings(0.0, 4.0))
    metric = AbMetric.read(name)
    assert (metric.of(summary), metric.lower_is_better) == pytest.approx((value, lower))


@pytest.mark.parametrize("name", ["phase:decode_p50", "cpu_ms_per_output_token", "peak_memory_mb"])
def test_what_a_server_does_not_tell_has_no_value(name: str) -> None:
    summary = summarize(LoadResult(RECORDS, QUIET), SummarySettings(0.0, 4.0))
    assert math.isnan(AbMetric.read(name).of(summary))


@pytest.mark.parametrize("name", ["", "speed", "ttft", "ttft_p98", "phase:_p50", "phase:a_p5", "goodput_p50"])
def test_what_is_no_metric_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no metric: write ttft_p50"):
        AbMetric.read(name)
