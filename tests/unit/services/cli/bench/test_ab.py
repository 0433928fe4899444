"""Two servers in turns: the order of rounds, when they end, and what is said of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from services.cli.bench.ab import AbResult, build_bench_ab_parser, main, run_pairs
from services.cli.bench.report.load_summary import LoadSummary, SummarySettings, summarize
from services.cli.bench.run.load import LoadResult
from services.cli.bench.run.loop_watch import GeneratorLoad
from services.cli.bench.stats.bootstrap import LEAST_PAIRS
from services.cli.bench.stats.comparison import compare_pairs
from services.cli.bench.targets.target import CallOutcome
from shared.errors import Unavailable
from tests.support.clock import FakeClock
from tests.unit.services.cli.bench.records import QUIET, call_record

SETTINGS = SummarySettings(0.0, 4.0)
Play = Callable[[int, int], float]


def summary_of(ttft_s: float) -> LoadSummary:
    return summarize(LoadResult([call_record(ttft_s=ttft_s)], QUIET), SummarySettings(0.0, 4.0))


def played(ttft_s: Play, *argv: str, round_s: float = 1.0) -> tuple[AbResult, list[tuple[int, int]]]:
    """Compare sides whose rounds have such a ttft, and return the rounds as they came."""
    clock, rounds = FakeClock(), []

    async def measure(side: int, pair: int) -> LoadSummary:
        rounds.append((side, pair))
        clock.advance(round_s)
        return summary_of(ttft_s(side, pair))

    args = build_bench_ab_parser().parse_args(["a", "b", *argv])
    return asyncio.run(run_pairs(args, measure, clock.monotonic_s)), rounds


def noise(pair: int) -> float:
    return math.exp(Random(pair).gauss(0.0, 0.01))


def test_pairs_begin_with_each_side_in_turns_and_the_first_does_not_count() -> None:
    result, rounds = played(lambda side, pair: 0.1 * noise(pair * 2 + side), "--pairs", "6")
    assert rounds[:6] == [(1, 0), (0, 0), (0, 1), (1, 1), (1, 2), (0, 2)]
    assert len(result.values[0]) == len(result.values[1]) == 6
    assert len(rounds) == 14


def test_a_clear_difference_ends_it_at_the_first_look() -> None:
    result, rounds = played(lambda side, pair: 0.1 * (1 + side) * noise(pair * 2 + side))
    assert len(rounds) == 2 * (LEAST_PAIRS + 1)
    assert result.comparison.verdict("ttft_p50", lower_is_better=True).startswith(
        "B is slower: its ttft_p50 is "
    )


def test_no_difference_is_looked_for_until_the_pairs_are_over() -> None:
    result, _ = played(
        lambda side, pair: 0.1 * noise(pair * 2 + side), "--pairs", "13", "--warmup-pairs", "0"
    )
    assert (len(result.values[0]), result.comparison.decided) == (13, False)


def test_what_makes_it_doubtful_is_said_once_and_not_for_every_round() -> None:
    late = [
        summarize(LoadResult([call_record(lap=n)], GeneratorLoad(0.0, 20.0 * n, 0.1)), SETTINGS)
        for n in (0, 1, 2)
    ]
    comparison = compare_pairs([1.0] * 6, [1.0] * 6, 1, 0)
    assert AbResult(comparison, ([], []), (late, late)).warnings() == [
        "in the worst round the generator saw events 40.0 ms late at p99",
        "in 4 rounds calls asked what had been asked before",
    ]


def test_time_ends_it_and_says_so_where_nothing_counts() -> None:
    result, rounds = played(lambda side, pair: 0.1 * noise(pair * 2 + side), "--time", "7")
    assert (len(rounds), len(result.values[0])) == (8, 3)
    assert result.comparison.verdict("ttft_p50", lower_is_better=True).startswith(
        "no difference shown at 3 pairs"
    )
    with pytest.raises(Unavailable, match="--time 2 was over before a pair that counts"):
        played(lambda *_: 0.1, "--time", "2")


def test_a_round_without_the_metric_says_how_its_calls_ended() -> None:
    async def measure(side: int, pair: int) -> LoadSummary:
        records = [call_record(outcome=CallOutcome.SHED, kind="http 429")] * 3
        return summarize(LoadResult(records, QUIET), SummarySettings(0.0, 4.0))

    args = build_bench_ab_parser().parse_args(["a", "b", "--warmup-pairs", "0"])
    with pytest.raises(Unavailable, match="A has no ttft_p50 in pair 1: its calls ended as 3 shed http 429"):
        asyncio.run(run_pairs(args, measure, FakeClock().monotonic_s))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("a",), "required: b"),
        (("a", "b", "--pairs", "5"), "not a whole number from 6 to 1000"),
        (("a", "b", "--metric", "speed"), "'speed' is no metric: write ttft_p50"),
        (("a", "b", "--", "--rate", "x"), "'x' is not a number"),
        (
            (
                "a",
                "--temperature x",
            ),
            "'x' is not a number",
        ),
    ],
)
def test_bad_input_is_a_usage_error(
    argv: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main(argv)
    assert raised.value.code == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_what_belongs_to_one_report_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["127.0.0.1:9", "127.0.0.1:9", "--", "--sweep", "1-2"]) == 2
    assert "not for ab" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    assert main(["http://127.0.0.1:9", "127.0.0.1:9", "--json", str(file)]) == 1
    assert "connection: ClientConnectorError" in capsys.readouterr().err
    assert not file.exists()
