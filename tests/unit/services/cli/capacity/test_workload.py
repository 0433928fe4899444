"""Loads of distributions and of traces."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from services.cli.bench.plan.lengths import TokenLengths
from services.cli.capacity import workload_trace
from services.cli.capacity.workload import Workload
from services.cli.capacity.workload_trace import LEAST_GAPS, busiest_window, traced_workload
from shared.errors import InvalidRequest
from tests.unit.services.cli.capacity.deployments import load


def mooncake(folder: Path, rows: list[tuple[int, int, int, list[int]]]) -> Path:
    path = folder / "trace.jsonl"
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    return path


def test_lengths_are_those_of_their_distribution_and_the_same_each_time() -> None:
    def drawn() -> Workload:
        return Workload.of_lengths(1.0, 2.0, TokenLengths(100, 300), TokenLengths(1, 3))

    workload = drawn()
    assert workload.input_tokens.tolist() == drawn().input_tokens.tolist()
    assert workload.arrival_scv == 4
    assert workload.input_tokens.mean() == pytest.approx(200, rel=0.03)
    assert workload.mean_output_tokens == pytest.approx(2, rel=0.03)


def test_what_is_cached_is_not_computed_but_for_the_last_token() -> None:
    workload = load(1.0, prompt=200)
    assert workload.more_cached(0.5).computed_tokens.mean() == 100
    assert workload.more_cached(0.5).more_cached(0.5).computed_tokens.mean() == 50
    assert workload.more_cached(1.0).computed_tokens.mean() == 1


def test_a_trace_of_mooncake_tells_lengths_times_and_equal_prefixes(tmp_path: Path) -> None:
    path = mooncake(tmp_path, [(0, 1100, 10, [1, 2, 3]), (2000, 1100, 30, [1, 2, 4]), (4000, 512, 20, [9])])
    workload = traced_workload("mooncake", path, 60.0, 1.0, 1.0, None)
    assert workload.rate == pytest.approx(3 / 4)
    assert workload.input_tokens.tolist() == [512, 1100, 1100]
    assert workload.mean_output_tokens == 20
    assert workload.cached_share == pytest.approx(1024 / 2712)
    assert traced_workload("mooncake", path, 60.0, 2.0, 0.5, 0.25).rate == pytest.approx(3 / 2)
    assert traced_workload("mooncake", path, 60.0, 1.0, 0.5, 0.25).cached_share == 0.25
    assert traced_workload("mooncake", path, 60.0, 1.0, 0.5, 0.25).input_tokens.max() == pytest.approx(550)


def test_a_trace_of_azure_tells_lengths_and_times(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.0000000,100,5\n2024-05-10 00:00:10.0000000,300,0\n"
    )
    workload = traced_workload("azure", path, 60.0, 1.0, 1.0, None)
    assert (workload.rate, workload.cached_share) == (0.2, 0)
    assert workload.output_tokens.tolist() == [5, 1]


def test_the_busiest_window_counts() -> None:
    slow, fast = np.arange(0.0, 100.0, 10.0), 100 + np.arange(0.0, 10.0, 0.1)
    rate, scv = busiest_window(np.concatenate((slow, fast, 200 + slow)), 5.0)
    assert rate == pytest.approx(10, rel=0.03)
    assert scv == pytest.approx(0, abs=1e-9)


def test_few_gaps_are_taken_for_poisson_s() -> None:
    times = np.arange(LEAST_GAPS + 1, dtype=np.float64)
    assert busiest_window(times[:-1], 1e6)[1] == 1
    assert busiest_window(times, 1e6)[1] == pytest.approx(0)


def test_requests_all_at_once_are_those_of_a_window() -> None:
    assert busiest_window(np.zeros(30), 60.0)[0] == pytest.approx(0.5)


def test_a_trace_without_a_request_and_with_a_wrong_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="has no request"):
        traced_workload("mooncake", mooncake(tmp_path, []), 60.0, 1.0, 1.0, None)
    with pytest.raises(InvalidRequest, match=r"line 1: it has 1 hash_ids for input_length 1100"):
        traced_workload("mooncake", mooncake(tmp_path, [(0, 1100, 1, [1])]), 60.0, 1.0, 1.0, None)


def test_a_trace_is_read_up_to_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = mooncake(tmp_path, [(1000 * at, 100, 10 * at, [at]) for at in range(1, 6)])
    monkeypatch.setattr(workload_trace, "MAX_TRACE_REQUESTS", 3)
    assert traced_workload("mooncake", path, 60.0, 1.0, 1.0, None).output_tokens.tolist() == [10, 20, 30]
