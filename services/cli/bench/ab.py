"""`penstock bench ab A B`: the same load on two servers in turns, until one is shown to be better."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import shlex
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from services.cli.arguments import natural, seconds
from services.cli.bench.ab_side import AbSide
from services.cli.bench.measured_load import find_traits, load_of
from services.cli.bench.plan.prose import Prose
from services.cli.bench.report.latency_figures import OF_CALLS, SHARES
from services.cli.bench.report.load_summary import LoadSummary, SummarySettings, summarize
from services.cli.bench.report.machine import MachineState
from services.cli.bench.run.loop_watch import worst_of
from services.cli.bench.serve_options import build_bench_serve_parser, checked_serve_args
from services.cli.bench.stats.bootstrap import LEAST_PAIRS
from services.cli.bench.stats.comparison import PairComparison, compare_pairs, look_plan
from services.cli.bench.targets.probe import TargetTraits
from services.cli.bench.targets.target import CallEnded
from services.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from shared.errors import InvalidRequest, PenstockError, Unavailable

RATES = ("goodput", "requests_per_s", "output_tokens_per_s", "tokens_per_s_of_a_user")
"""Metrics of which more is better."""
LATENCIES = tuple(f"{quantity}_{share}" for quantity in (*OF_CALLS, "itl", "job") for share in SHARES)
MAX_PAIRS = 1000
"""The most pairs of rounds."""
USUAL_ROUND_S = "10"

Measure = Callable[[int, int], Awaitable[LoadSummary]]
"""Measures one side, 0 or 1, in one pair."""


@dataclass(frozen=True, slots=True)
class AbResult:
    """`values`: the metric of A and of B in each pair."""

    comparison: PairComparison
    values: tuple[list[float], list[float]]
    summaries: tuple[list[LoadSummary], list[LoadSummary]]

    def warnings(self) -> list[str]:
        """Return what makes it doubtful: the generator at its worst, and files that were too short."""
        rounds = [*self.summaries[0], *self.summaries[1]]
        found = [
            f"in the worst round {text}" for text in worst_of([one.generator for one in rounds]).warnings()
        ]
        again = sum(one.repeated_calls > 0 for one in rounds)
        return [*found, *([f"in {again} rounds calls asked what had been asked before"] if again else [])]


def build_bench_ab_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock bench ab",
        description="Put the same load on two servers in turns, and say whether B is faster. Exit code 1 "
        "when something does not answer, 2 for bad input.",
        epilog="Options of `penstock bench serve` for both stand behind --.",
    )
    for side in ("a", "b"):
        parser.add_argument(
            side,
            help="URL, HOST:PORT of gRPC, options of `penstock bench serve` in quotes, or a stack that is "
            "started: 'up' with options of `penstock up`, 'commit:NAME' or 'commit:NAME up …'",
        )
    parser.add_argument(
        "--metric", choices=(*LATENCIES, *RATES), default="ttft_p50", metavar="NAME", help="default ttft_p50"
    )
    parser.add_argument("--pairs", type=_pairs, default=40, metavar="N", help="at most; default 40")
    parser.add_argument("--time", type=seconds, default=900.0, metavar="S", help="no pair begins later; 900")
    parser.add_argument(
        "--warmup-pairs", type=natural, default=1, metavar="N", help="do not count; default 1"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures of all rounds")
    return parser


def main(argv: Sequence[str]) -> int:
    """0 when it is compared, whatever comes of it; 1 when something does not answer, 2 for bad input."""
    own, common = _split(argv)
    args = build_bench_ab_parser().parse_args(own)
    common = ["--duration", USUAL_ROUND_S, *common]
    try:
        sides = [AbSide.read(text) for text in (args.a, args.b)]
        parsed = [checked_serve_args(build_bench_serve_parser(), [*side.serve, *common]) for side in sides]
        if any(one.sweep or one.json or one.html for one in parsed):
            raise InvalidRequest("--sweep, --json and --html of the rounds are not for ab: leave them out")
        return asyncio.run(_compare_sides(args, sides, common))
    except (PenstockError, CallEnded) as error:
        print(f"penstock bench ab: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, InvalidRequest) else EXIT_FAILED


async def _compare_sides(args: argparse.Namespace, sides: list[AbSide], common: list[str]) -> int:
    """Compare them while all that had to be started stands."""
    machine = MachineState.now()
    async with contextlib.AsyncExitStack() as started:
        servers = [await started.enter_async_context(side.options()) for side in sides]
        return await _compare(args, machine, [[*options, *common] for options in servers])


async def _compare(args: argparse.Namespace, machine: MachineState, sides: list[list[str]]) -> int:
    parsed = [checked_serve_args(build_bench_serve_parser(), side) for side in sides]
    proses = [Prose.of(one.text) for one in parsed]
    traits = [await find_traits(one, prose) for one, prose in zip(parsed, proses, strict=True)]

    async def measure(side: int, pair: int) -> LoadSummary:
        """The two of a pair have equal lengths and times, and texts of their own: neither warms the other."""
        seeds = ["--seed", str(parsed[side].seed + pair), "--text-seed", str(side + 1)]
        argv = [*sides[side], *seeds]
        one = checked_serve_args(build_bench_serve_parser(), argv)
        result = await load_of(one, argv, proses[side], traits[side], one.rate or 0.0, lambda _: None)
        chars = traits[side].chars_per_token
        return summarize(result, SummarySettings(one.warmup, chars, one.slo, seed=one.seed))

    for name, text, side in zip("AB", (args.a, args.b), sides, strict=True):
        print(f"{name}: {text}; {shlex.join(side)}")
    print(f"client on {machine.words()}")
    for sentence in machine.warnings():
        print(f"warning: {sentence}")
    result = await run_pairs(args, measure, time.monotonic)
    lower = args.metric in LATENCIES
    for sentence in result.warnings():
        print(f"warning: {sentence}")
    print(result.comparison.verdict(args.metric, lower_is_better=lower))
    if args.json:
        described = _described(args, sides, traits, machine, result)
        args.json.write_text(json.dumps(described, indent=1) + "\n", "utf-8")
    return 0


async def run_pairs(args: argparse.Namespace, measure: Measure, clock: Callable[[], float]) -> AbResult:
    """Run pair after pair, A first in every other one, until a look decides, or pairs or time are over.

    Raises Unavailable where a round has no value of the metric, or time ends before a first pair.
    """
    began_s = clock()
    values: tuple[list[float], list[float]] = ([], [])
    summaries: tuple[list[LoadSummary], list[LoadSummary]] = ([], [])
    looks = look_plan(args.pairs)
    for pair in range(-args.warmup_pairs, args.pairs):
        if clock() - began_s >= args.time:
            break
        for side in (0, 1) if pair % 2 == 0 else (1, 0):
            summary = await measure(side, pair + args.warmup_pairs)
            if pair >= 0:
                values[side].append(_value(summary, args.metric, "AB"[side], pair))
                summaries[side].append(summary)
        if pair >= 0:
            print(f"pair {pair + 1}: A {values[0][-1]:.4g}, B {values[1][-1]:.4g} {args.metric}", flush=True)
        if pair + 1 in looks and compare_pairs(*values, len(looks), seed=0).decided:
            break
    if not values[0]:
        raise Unavailable(f"--time {args.time:g} was over before a pair that counts; give it more")
    return AbResult(compare_pairs(*values, len(looks), seed=0), values, summaries)


def _value(summary: LoadSummary, metric: str, side: str, pair: int) -> float:
    if metric in RATES:
        value = summary.rates[metric]
    else:
        quantity, _, share = metric.partition("_")
        value = summary.latencies[quantity].quantiles[share].value
    if not (math.isfinite(value) and value > 0):
        ends = ", ".join(f"{count} {outcome} {kind}" for (_, outcome, kind), count in summary.ends.items())
        raise Unavailable(f"{side} has no {metric} in pair {pair + 1}: its calls ended as {ends or 'none'}")
    return value


def _described(
    args: argparse.Namespace,
    sides: list[list[str]],
    traits: list[TargetTraits],
    machine: MachineState,
    result: AbResult,
) -> dict[str, Any]:
    comparison = asdict(result.comparison)
    return {
        "metric": args.metric,
        "machine": asdict(machine),
        "comparison": {name: value if math.isfinite(value) else None for name, value in comparison.items()},
        "verdict": result.comparison.verdict(args.metric, lower_is_better=args.metric in LATENCIES),
        "sides": {
            name: {
                "side": (args.a, args.b)[index],
                "options": sides[index],
                "target": asdict(traits[index]),
                "values": result.values[index],
                "rounds": [summary.as_json() for summary in result.summaries[index]],
            }
            for index, name in enumerate("AB")
        },
    }


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return our own options, and those of both loads behind --."""
    where = argv.index("--") if "--" in argv else len(argv)
    return list(argv[:where]), list(argv[where + 1 :])


def _pairs(text: str) -> int:
    value = natural(text)
    if not LEAST_PAIRS <= value <= MAX_PAIRS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {LEAST_PAIRS} to {MAX_PAIRS}")
    return value
