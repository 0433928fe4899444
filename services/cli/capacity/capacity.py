"""`penstock capacity`: what instances a load needs, and what a running stack says of its own speed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from services.cli.bench.report.prices import Prices
from services.cli.capacity.capacity_answer import answer_question
from services.cli.capacity.capacity_options import (
    build_capacity_parser,
    checked_capacity_args,
    given_counts,
)
from services.cli.capacity.capacity_words import capacity_words
from services.cli.capacity.measured_comparison import MeasuredFile
from services.cli.capacity.profile_file import read_profile
from services.cli.capacity.sizing import CapacityQuestion
from services.cli.capacity.stack_profile import write_stack_profile
from services.cli.capacity.workload import Workload
from services.cli.capacity.workload_trace import traced_workload
from services.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from services.cli.fleet.fleet_watch import run_on_bus
from shared.errors import InvalidRequest

__all__ = ["build_capacity_parser", "main"]


def main(argv: Sequence[str]) -> int:
    """0 where everything is kept or written, 1 where not, 2 for bad input."""
    args = checked_capacity_args(argv)
    if args.command == "profile":
        return run_on_bus(
            args, "capacity profile", lambda address: write_stack_profile(address, args.out, args.watch)
        )
    try:
        return _plan(args)
    except InvalidRequest as error:
        print(f"penstock capacity plan: {error}", file=sys.stderr)
        return EXIT_USAGE


def _plan(args: argparse.Namespace) -> int:
    """Raises InvalidRequest."""
    prices = Prices.of(args.prices) if args.prices else None
    if prices is not None and not prices.machine_per_hour:
        raise InvalidRequest(f"{args.prices} has no machine_per_hour, which is what instances cost; write it")
    measured = MeasuredFile.read(args.measured) if args.measured else None
    question = CapacityQuestion(
        read_profile(args.profile), _workload(args), args.slo, args.hosts, args.requests
    )
    answer = answer_question(question, given_counts(args), args.regions, prices, measured)
    print(json.dumps(answer.as_json(), indent=1) if args.json else capacity_words(answer))
    return 0 if answer.prediction.kept else EXIT_FAILED


def _workload(args: argparse.Namespace) -> Workload:
    if args.trace is None:
        return Workload.of_lengths(
            args.rate, args.variation, args.input_tokens, args.output_tokens, args.cached or 0.0
        )
    kind, path = args.trace
    return traced_workload(kind, path, args.window, args.speed, args.length_scale, args.cached)
