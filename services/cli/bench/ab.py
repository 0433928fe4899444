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
from typing import Any, Self

from services.cli.arguments import natural, seconds
from services.cli.bench.ab_metric import FORMS, AbMetric
from services.cli.bench.ab_side import AbSide, SideServer
from services.cli.bench.measured_load import find_traits, load_of
from services.cli.bench.plan.prose import Prose
from services.cli.bench.report.load_summary import LoadSummary, SummarySettings, summarize
from services.cli.bench.report.machine import MachineState
from services.cli.bench.run.loop_watch import worst_of
from services.cli.bench.serve_options import build_bench_serve_parser, checked_serve_args, said_by
from services.cli.bench.stats.bootstrap import LEAST_PAIRS
from services.cli.bench.stats.comparison import PairComparison, compare_pairs, look_plan
from services.cli.bench.targets.probe import TargetTraits
from services.cli.bench.targets.target import CallEnded
from services.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from shared.errors import InvalidRequest, PenstockError, Unavailable

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


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """A side with its load: `argv` are its options of `penstock bench serve`, as `args` has them."""

    text: str
    server: SideServer
    argv: list[str]
    args: argparse.Namespace
    prose: Prose
    traits: TargetTraits

    @classmethod
    async def find(cls, text: str, server: SideServer, common: list[str]) -> Self:
        """Look at what is there. Raises InvalidRequest, Unavailable, and CallEnded where nothing answers."""
        argv = [*server.options, *common]
        args = checked_serve_args(build_bench_serve_parser(), argv)
        prose = Prose.of(args.text)
        return cls(text, server, argv, args, prose, await find_traits(args, prose))

    def as_json(self) -> dict[str, Any]:
        """Return what another one needs to measure it again."""
        return {
            "side": self.text,
            "commit": self.server.commit or None,
            "settings": self.server.settings,
            "options": self.argv,
            "seed": self.args.seed,
            "target": asdict(self.traits),
        }


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
        "--metric",
        type=said_by(AbMetric.read),
        default=AbMetric.read("ttft_p50"),
        metavar="NAME",
        help=f"default ttft_p50; {FORMS}",
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
        servers = [await started.enter_async_context(side.server()) for side in sides]
        return await _compare(args, machine, servers, common)


async def _compare(
    args: argparse.Namespace, machine: MachineState, servers: list[SideServer], common: list[str]
) -> int:
    texts = (args.a, args.b)
    sides = [
        await ComparedSide.find(text, server, common) for text, server in zip(texts, servers, strict=True)
    ]

    async def measure(index: int, pair: int) -> LoadSummary:
        """The two of a pair have equal lengths and times, and texts of their own: neither warms the other."""
        side = sides[index]
        argv = [*side.argv, "--seed", str(side.args.seed + pair), "--text-seed", str(index + 1)]
        one = checked_serve_args(build_bench_serve_parser(), argv)
        result = await load_of(one, argv, side.prose, side.traits, one.rate or 0.0, lambda _: None)
        chars = side.traits.chars_per_token
        return summarize(result, SummarySettings(one.warmup, chars, one.slo, seed=one.seed))

    for name, side in zip("AB", sides, strict=True):
        code = f" at commit {side.server.commit}" if side.server.commit else ""
        print(f"{name}: {side.text}{code}; {shlex.join(side.argv)}")
    print(f"client on {machine.words()}")
    for sentence in machine.warnings():
        print(f"warning: {sentence}")
    result = await run_pairs(args, measure, time.monotonic)
    for sentence in result.warnings():
        print(f"warning: {sentence}")
    print(_verdict(args.metric, result))
    if args.json:
        args.json.write_text(json.dumps(_described(args, sides, machine, result), indent=1) + "\n", "utf-8")
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
            print(
                f"pair {pair + 1}: A {values[0][-1]:.4g}, B {values[1][-1]:.4g} {args.metric.name}",
                flush=True,
            )
        if pair + 1 in looks and compare_pairs(*values, len(looks), seed=0).decided:
            break
    if not values[0]:
        raise Unavailable(f"--time {args.time:g} was over before a pair that counts; give it more")
    return AbResult(compare_pairs(*values, len(looks), seed=0), values, summaries)


def _value(summary: LoadSummary, metric: AbMetric, side: str, pair: int) -> float:
    value = metric.of(summary)
    if not (math.isfinite(value) and value > 0):
        ends = ", ".join(f"{count} {outcome} {kind}" for (_, outcome, kind), count in summary.ends.items())
        why = f"its calls ended as {ends or 'none'}{metric.hint}"
        raise Unavailable(f"{side} has no {metric.name} in pair {pair + 1}: {why}")
    return value


def _verdict(metric: AbMetric, result: AbResult) -> str:
    return result.comparison.verdict(metric.name, lower_is_better=metric.lower_is_better)


def _described(
    args: argparse.Namespace, sides: list[ComparedSide], machine: MachineState, result: AbResult
) -> dict[str, Any]:
    comparison = asdict(result.comparison)
    return {
        "metric": args.metric.name,
        "machine": asdict(machine),
        "comparison": {name: value if math.isfinite(value) else None for name, value in comparison.items()},
        "verdict": _verdict(args.metric, result),
        "warmup_pairs": args.warmup_pairs,
        "sides": {
            name: {
                **sides[index].as_json(),
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
