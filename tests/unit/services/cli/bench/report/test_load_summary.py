"""Figures of a load: what counts, what is an error, what is good, and what makes figures doubtful."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

from services.cli.bench.plan.conduct import Conduct
from services.cli.bench.report.latency_figures import SHARES, all_figures
from services.cli.bench.report.load_summary import SummarySettings, bucket_of, summarize
from services.cli.bench.report.load_words import summary_words
from services.cli.bench.report.prices import Prices
from services.cli.bench.report.service_level import ServiceLevel
from services.cli.bench.run.load import LoadResult
from services.cli.bench.run.loop_watch import GeneratorLoad, worst_of
from services.cli.bench.run.server_watch import ServerUse
from services.cli.bench.targets.target import CallOutcome
from tests.unit.services.cli.bench.records import QUIET, call_record

SETTINGS = SummarySettings(warmup_s=0.0, chars_per_token=4.0)


def test_percentiles_are_numpy_s_and_each_has_its_interval() -> None:
    random = np.random.default_rng(1)
    ttfts = random.exponential(0.1, 500)
    records = [
        call_record(n, ttft_s=float(t), gaps_s=random.exponential(0.02, 9).tolist())
        for n, t in enumerate(ttfts)
    ]
    figures = all_figures(records, seed=0)
    gaps = np.asarray([gap for record in records for gap in record.gaps_s])
    for name, values in (("ttft", ttfts), ("itl", gaps)):
        for quantile, share in SHARES.items():
            found = figures[name].quantiles[quantile]
            assert found.value == pytest.approx(1e3 * np.quantile(values, share, method="inverted_cdf"))
            assert found.low <= found.value <= found.high
    assert figures["ttft"].quantiles["p99.9"].high == math.inf
    assert figures["e2e"].count == 500
    assert figures["ttua"].count == 0


def test_clients_that_do_not_behave_have_no_part_in_latencies() -> None:
    records = [
        call_record(0, ttft_s=0.1),
        call_record(1, ttft_s=9.0, conduct=Conduct.CANCEL, outcome=CallOutcome.GAVE_UP, kind="cancel"),
        call_record(2, ttft_s=9.0, outcome=CallOutcome.SHED, kind="http 429"),
        call_record(3, ttft_s=9.0, outcome=CallOutcome.FAILED, kind="cut stream"),
        call_record(4, ttft_s=9.0, conduct=Conduct.STALL),
    ]
    summary = summarize(LoadResult(records, QUIET), SETTINGS)
    assert summary.latencies["ttft"].count == 1
    assert summary.ends == {
        ("well", "finished", ""): 1,
        ("cancel", "gave up", "cancel"): 1,
        ("well", "shed", "http 429"): 1,
        ("well", "failed", "cut stream"): 1,
        ("stall", "finished", ""): 1,
    }
    assert (summary.rates["errors"], summary.rates["sheds"]) == (0.2, 0.2)
    assert summary.rates["attainment"] == pytest.approx(1 / 3)


def test_goodput_counts_calls_that_keep_every_objective() -> None:
    levels = [ServiceLevel.read(text) for text in ("ttft_p99<300ms", "itl_p90<0.05s", "errors<1%")]
    records = [
        call_record(0, at_s=0.0, ttft_s=0.1),
        call_record(1, at_s=1.0, ttft_s=0.3),
        call_record(2, at_s=2.0, ttft_s=0.1, gaps_s=(0.01, 0.06)),
        call_record(3, at_s=3.0, ttft_s=0.1, gaps_s=[0.01] * 19 + [0.06]),
        call_record(4, at_s=3.4, ttft_s=0.6, gaps_s=(), outcome=CallOutcome.FAILED),
    ]
    summary = summarize(LoadResult(records, QUIET), SummarySettings(0.0, 4.0, levels))
    assert summary.seconds == pytest.approx(4.0)
    assert (summary.goodput, summary.rates["attainment"]) == pytest.approx((0.5, 0.4))
    assert [verdict.kept for verdict in summary.verdicts] == [False, True, False]


def test_a_job_is_a_dialogue_of_several_calls_that_all_finished_behind_the_warm_up() -> None:
    records = [
        *(call_record(0, at_s=at_s) for at_s in (0.0, 5.0)),
        *(call_record(1, at_s=at_s, ttft_s=0.5, gaps_s=()) for at_s in (3.0, 6.0)),
        call_record(2, at_s=4.0),
        *(call_record(3, at_s=5.0, outcome=outcome) for outcome in (CallOutcome.FINISHED, CallOutcome.SHED)),
    ]
    settings = SummarySettings(2.0, 4.0, [ServiceLevel.read(f"job_p50<{limit}s") for limit in (3.4, 3.6)])
    summary = summarize(LoadResult(records, QUIET), settings)
    assert summary.latencies["job"].count == 1
    assert summary.latencies["job"].mean == pytest.approx(3500)
    assert [verdict.kept for verdict in summary.verdicts] == [False, True]
    assert summary.goodput * summary.seconds == pytest.approx(5)


def test_each_source_of_a_mix_has_its_attainment() -> None:
    chats = [call_record(n, at_s=float(n), ttft_s=0.1) for n in range(3)]
    agents = [call_record(n, at_s=float(n), ttft_s=0.2 * n) for n in (3, 4)]
    for record in agents:
        record.source = "agents"
    levels = (
        "ttft_p50<700ms",
        "test:ttft_p99<50ms",
        "agents:job_p50<9s",
        "agents:errors<1%",
        "none:errors<1%",
    )
    settings = SummarySettings(0.0, 4.0, [ServiceLevel.read(level) for level in levels])
    summary = summarize(LoadResult([*chats, *agents], QUIET), settings)
    found = {name: (each.calls, each.attainment) for name, each in summary.sources.items()}
    assert found == {"agents": (2, 0.5), "test": (3, 0.0)}
    assert [verdict.kept for verdict in summary.verdicts] == [True, False, False, True, False]
    assert re.search(
        r"^agents +2 +50\.0% +[\d.]+ +0\.0% +0\.0% +600 +800 ", summary_words(summary), re.MULTILINE
    )
    assert "kept    agents:errors<1%: 0%" in summary_words(summary)
    assert json.loads(json.dumps(summary.as_json(), allow_nan=False))["by_source"]["agents"]["calls"] == 2


def test_what_the_server_spent_is_told_by_output_token() -> None:
    records = [call_record(n, at_s=float(n)) for n in range(10)]
    server = ServerUse(cpu_s=1.5, peak_bytes=300 << 20, processes=4)
    summary = summarize(LoadResult(records, QUIET, server=server), SummarySettings(0.0, 4.0))
    assert (
        "server: 4 processes, 1.5 CPU seconds, 50 ms of CPU an output token, peak memory 300 MiB"
        in summary_words(summary)
    )


def test_rates_count_from_the_first_send_to_the_last_end() -> None:
    records = [call_record(n, at_s=float(n), ttft_s=0.5, gaps_s=(0.5,)) for n in range(10)]
    summary = summarize(LoadResult(records, QUIET), SummarySettings(warmup_s=2.0, chars_per_token=4.0))
    assert (summary.calls, summary.warmup_calls, summary.seconds) == pytest.approx((8, 2, 8.0))
    assert summary.rates["requests_per_s"] == pytest.approx(1.0)
    assert summary.rates["output_tokens_per_s"] == pytest.approx(2.0)
    assert summary.rates["prompt_tokens_per_s"] == pytest.approx(100.0)
    assert summary.rates["tokens_per_s_of_a_user"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        (127, "under 128"),
        (128, "128 to 511"),
        (511.5, "128 to 511"),
        (512, "512 to 2047"),
        (1e6, "32768 and more"),
    ],
)
def test_prompts_are_told_apart_by_length(tokens: float, name: str) -> None:
    assert bucket_of(tokens) == name


def test_a_prompt_that_the_server_does_not_count_is_counted_by_its_characters() -> None:
    records = [call_record(prompt_tokens=-1), call_record(prompt_tokens=200)]  # of 400 characters each
    summary = summarize(LoadResult(records, QUIET), SETTINGS)
    assert {name: found["ttft"].count for name, found in summary.buckets.items()} == {
        "under 128": 1,
        "128 to 511": 1,
    }


def test_tokens_are_told_by_their_origin() -> None:
    records = [
        call_record(cached_tokens=60, drafted_tokens=2),
        call_record(cached_tokens=0, drafted_tokens=0),
        call_record(earlier_answer=True),
    ]
    origins = summarize(LoadResult(records, QUIET), SETTINGS).origins
    assert (origins.prompt_computed, origins.prompt_cached) == (140, 60)
    assert (origins.output_decoded, origins.output_drafted, origins.earlier_answers) == (4, 2, 1)
    assert summarize(LoadResult([call_record()], QUIET), SETTINGS).origins.prompt_cached is None


def test_phases_of_the_server_are_in_its_order() -> None:
    records = [call_record(phases_ms={"admit": 1.0, "decode": 5.0}), call_record(phases_ms={"decode": 7.0})]
    phases = summarize(LoadResult(records, QUIET), SETTINGS).phases
    assert list(phases) == ["admit", "decode"]
    assert (phases["decode"].count, phases["decode"].mean) == pytest.approx((2, 6.0))


def test_waits_in_the_server_s_lines_are_its_queue() -> None:
    waits = {
        "line": 1.0,
        "prefill.queue": 2.0,
        "decode.queue": 3.0,
        "decode.prefill_queue": 4.0,
        "decode": 50.0,
    }
    records = [call_record(phases_ms=waits), call_record(phases_ms={"decode": 5.0}), call_record()]
    queue = summarize(LoadResult(records, QUIET), SETTINGS).latencies["queue"]
    assert (queue.count, queue.mean) == pytest.approx((2, 5.0))


def test_what_makes_figures_doubtful_is_said() -> None:
    late = GeneratorLoad(send_late_p99_ms=50.0, loop_late_p99_ms=60.0, cpu_share=0.95)
    warnings = summarize(LoadResult([call_record(lap=1)], late), SETTINGS).warnings
    assert [sentence.partition(" ")[0] for sentence in warnings] == ["requests", "the", "the", "1"]
    assert all("--processes" in sentence for sentence in warnings[:3])
    assert summarize(LoadResult([], QUIET), SETTINGS).warnings == [
        "no call counts: all were of the warm-up, or there were none"
    ]
    assert summarize(LoadResult([call_record()], QUIET), SETTINGS).warnings == []


def test_the_worst_of_several_processes_counts() -> None:
    assert worst_of([GeneratorLoad(1.0, 9.0, 0.2), GeneratorLoad(2.0, 3.0, 0.1)]) == GeneratorLoad(
        2.0, 9.0, 0.2
    )


def test_all_of_it_is_json_without_what_json_has_no_word_for() -> None:
    prices = Prices(output_per_million=2.0)
    settings = SummarySettings(0.0, 4.0, [ServiceLevel.read("ttua_p50<1s")], prices)
    for records in ([], [call_record()]):
        described = summarize(LoadResult(records, QUIET), settings).as_json()
        json.dumps(described, allow_nan=False)
    assert described["latencies_ms"]["ttft"]["p99"] == {
        "value": pytest.approx(100),
        "low": 100.0,
        "high": None,
    }
