"""The loads that all servers get, and the table of what was measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from services.cli.bench.serve_options import build_bench_serve_parser, checked_serve_args, named_sources
from tests.bench.bench_peers import LOADS, ROUND_CHATS, loads, table

QUESTIONS = [{"turns": [f"question {number}", "and then?"]} for number in range(80)]


@pytest.fixture
def options(tmp_path: Path) -> argparse.Namespace:
    chats = tmp_path / "chats.jsonl"
    chats.write_text("\n".join(map(json.dumps, QUESTIONS)))
    return argparse.Namespace(chats=chats, trace=tmp_path / "trace.jsonl", share=1.0)


def test_every_load_is_one_that_the_generator_takes(options: argparse.Namespace, tmp_path: Path) -> None:
    found = dict(loads(options, 0, tmp_path))
    assert tuple(found) == LOADS
    parsed = [checked_serve_args(build_bench_serve_parser(), words) for words in found.values()]
    assert [name for name, _ in named_sources(parsed[-1])] == ["prompts", "synthetic"]


@pytest.mark.parametrize(("share", "asked"), [(1.0, [10, 30]), (0.5, [5, 15]), (0.01, [1, 1])])
def test_a_share_of_a_load_has_so_many_of_its_questions_and_rounds_have_others(
    options: argparse.Namespace, tmp_path: Path, share: float, asked: list[int]
) -> None:
    options.share = share
    rounds = []
    for number in range(2):
        list(loads(options, number, tmp_path))
        rounds.append([(tmp_path / f"{name}.jsonl").read_text().splitlines() for name in ROUND_CHATS])
    assert [[len(part) for part in parts] for parts in rounds] == [asked, asked]
    lines = [line for parts in rounds for part in parts for line in part]
    assert len(set(lines)) == len(lines)


def test_a_row_of_the_table_is_the_mean_of_its_rounds(tmp_path: Path) -> None:
    for number in range(2):
        quantiles = {name: {"value": 10.0 * (number + 1)} for name in ("p50", "p99")}
        report = {
            "summary": {
                "calls": 4,
                "latencies_ms": {"ttft": quantiles, "itl": quantiles, "job": {"p50": {"value": None}}},
                "rates": {"goodput": 1.0, "output_tokens_per_s": 20.0},
                "token_origins": {"prompt_computed": 30, "prompt_cached": 10},
            },
            "server": {"cpu_s": 2.0, "pss_mb": 100.0},
        }
        (tmp_path / f"penstock int8-chat-1-{number}.json").write_text(json.dumps(report))
    assert table(tmp_path).splitlines()[-1] == (
        "| chat-1 | penstock int8 | 15 | 15 | 15 | 15 | - | 1 | 20 | 0.5 | 0.25 | 2 |"
    )
