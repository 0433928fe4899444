"""`penstock bench serve`: put load on a server, and say how it fared."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from services.cli.bench.measured_load import find_traits, load_of
from services.cli.bench.plan.prose import Prose
from services.cli.bench.report.load_page import load_page, sweep_page
from services.cli.bench.report.load_progress import BenchProgress
from services.cli.bench.report.load_summary import LoadSummary, SummarySettings, summarize
from services.cli.bench.report.load_words import summary_words, sweep_words
from services.cli.bench.report.machine import MachineState
from services.cli.bench.report.prices import Prices
from services.cli.bench.run.cut import unless_cut
from services.cli.bench.run.load import LoadResult
from services.cli.bench.run.rate_sweep import SweepResult, sweep_rates
from services.cli.bench.serve_options import build_bench_serve_parser, checked_serve_args, named_sources
from services.cli.bench.targets.probe import TargetTraits
from services.cli.bench.targets.target import CallEnded
from services.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from services.cli.view.live_text import LiveText, redraws_text
from shared.errors import InvalidRequest, PenstockError
from shared.process.quiet_end import Interrupt, interrupt_at_end

PRINTED_OPTIONS = ("api_key_file", "tls_key", "json", "html", "rows")
"""Options that the report does not repeat: secrets' places, and those of the report itself."""


@dataclass(frozen=True, slots=True)
class Measured:
    """`sweep` is there for several rates; `summary` and `result` are then those of its shown step."""

    traits: TargetTraits
    machine: MachineState
    result: LoadResult
    summary: LoadSummary
    sweep: SweepResult[LoadSummary] | None = None
    cut_calls: int | None = None
    """The calls that had not ended when Ctrl-C cut the load; None: it was not cut."""


def main(argv: Sequence[str]) -> int:
    """0 when measured and every objective kept, 1 when one was missed or nothing answers, 2 for bad input.

    A Ctrl-C cuts the load: what has been measured is reported, then it is raised. A second one is at once.
    """
    args = checked_serve_args(build_bench_serve_parser(), argv)
    try:
        settings = partial(
            SummarySettings,
            args.warmup,
            levels=args.slo,
            prices=Prices.of(args.prices) if args.prices else None,
            seed=args.seed,
        )
        with interrupt_at_end() as interrupt:
            measured = asyncio.run(_measure(args, argv, settings, interrupt))
            if measured is not None:
                _report(args, measured)
    except (PenstockError, CallEnded) as error:
        print(f"penstock bench serve: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, InvalidRequest) else EXIT_FAILED
    assert measured is not None  # else it was cut
    return 0 if all(verdict.kept for verdict in measured.summary.verdicts) else EXIT_FAILED


async def _measure(
    args: argparse.Namespace,
    argv: Sequence[str],
    settings: partial[SummarySettings],
    interrupt: Interrupt,
) -> Measured | None:
    """Return what was measured, up to a Ctrl-C; None where that came before the load.

    Raises InvalidRequest, Unavailable, and CallEnded where the server does not answer a first call.
    """
    cut = asyncio.Event()
    interrupt.stops(partial(asyncio.get_running_loop().call_soon_threadsafe, cut.set))
    machine = MachineState.now()
    prose = Prose.of(args.text)
    traits = await unless_cut(cut, find_traits(args, prose))
    if traits is None:
        return None
    told = settings(chars_per_token=traits.chars_per_token)
    live = LiveText(sys.stderr, redraws=True) if redraws_text(sys.stderr) else None

    async def load(rate: float) -> LoadResult:
        progress = BenchProgress(live)
        async with progress.shown(f"{rate:.3g} requests/s, " if args.sweep else ""):
            return await load_of(args, argv, prose, traits, rate, progress.add, cut)

    if args.sweep is None:
        result = await load(args.rate or 0.0)
        return Measured(traits, machine, result, summarize(result, told), cut_calls=result.cut_calls)
    results: list[LoadResult] = []

    async def step(rate: float) -> LoadSummary:
        results.append(await load(rate))
        return summarize(results[-1], told)

    sweep = await sweep_rates(args.sweep, step, lambda summary: summary.goodput, cut.is_set)
    shown = sweep.steps[sweep.shown][1]
    return Measured(traits, machine, results[sweep.shown], shown, sweep, results[-1].cut_calls)


def _report(args: argparse.Namespace, measured: Measured) -> None:
    context = _context(args, measured)
    print("\n".join(context), end="\n\n")
    if measured.sweep is not None:
        print(sweep_words(measured.sweep), end="\n\n")
    print(summary_words(measured.summary))
    if args.json:
        args.json.write_text(json.dumps(_described(args, measured), indent=1) + "\n", "utf-8")
    if args.html:
        title = f"{measured.traits.model} under load"
        if measured.sweep is None:
            page = load_page(title, context, measured.summary, measured.result.records)
        else:
            page = sweep_page(title, context, measured.sweep)
        args.html.write_text(page, "utf-8")


def _context(args: argparse.Namespace, measured: Measured) -> list[str]:
    """Return lines on what was measured, with what, and where."""
    traits = measured.traits
    counted = "as the server counts" if traits.counted else "assumed: the server does not count"
    where = f"{args.url} ({args.interface})" if args.url else f"gRPC ({args.interface})"
    lines = [
        f"{traits.model} at {where}; {traits.chars_per_token:.2f} characters a token, {counted}",
        f"load: {_load_words(args)}; seed {args.seed}; processes: {args.processes}",
        f"client on {measured.machine.words()}",
    ]
    warnings = measured.machine.warnings()
    if measured.cut_calls is not None:
        warnings.append(_cut_words(measured))
    return [*lines, *(f"warning: {sentence}" for sentence in warnings)]


def _cut_words(measured: Measured) -> str:
    what = "the load was cut by Ctrl-C"
    if measured.sweep is not None:
        what = f"the sweep was cut by Ctrl-C at {measured.sweep.steps[-1][0]:.3g} requests/s"
    return f"{what}: {measured.cut_calls} calls had not ended, and are in no figure"


def _load_words(args: argparse.Namespace) -> str:
    given = named_sources(args)
    parts = (f"{source.weight:g}*{name}" if len(given) > 1 else name for name, source in given)
    sources = " and ".join(parts)
    if args.replay:
        return f"replay of {sources}, {args.speed:g} times as fast, lengths times {args.length_scale:g}"
    if args.sweep:
        return f"open loops of {args.sweep.first_rate:g} to {args.sweep.last_rate:g}/s of {sources}"
    if args.rate:
        return f"open loop, {args.rate:g}/s, variation {args.variation:g}, of {sources}"
    return f"closed loop of {args.concurrency or 1} clients of {sources}"


def _described(args: argparse.Namespace, measured: Measured) -> dict[str, Any]:
    options = {name: value for name, value in vars(args).items() if name not in PRINTED_OPTIONS}
    described: dict[str, Any] = {
        "options": {name: _plain(value) for name, value in options.items()},
        "target": asdict(measured.traits),
        "machine": asdict(measured.machine),
        "summary": measured.summary.as_json(),
        "cut_calls": measured.cut_calls,
    }
    if measured.sweep is not None:
        described["sweep"] = {
            "steps": [{"rate": rate, "summary": step.as_json()} for rate, step in measured.sweep.steps],
            "knee": measured.sweep.steps[measured.sweep.shown][0] if measured.sweep.reached else None,
        }
    if args.rows:
        described["calls"] = [record.as_json() for record in measured.result.records]
    return described


def _plain(value: Any) -> Any:
    """Return an option as JSON has it: what is no plain value in words."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else str(value)
