"""The options of `penstock capacity`: what is known of a deployment, its load, and what is said."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from services.cli.arguments import finite, natural, seconds
from services.cli.bench.plan.arrivals import MAX_VARIATION
from services.cli.bench.plan.lengths import TokenLengths
from services.cli.bench.report.service_level import FORMS, ServiceLevel
from services.cli.bench.serve_options import MAX_RATE, MAX_SPEED
from services.cli.capacity.prediction import MAX_PLAYED_REQUESTS, NOT_PREDICTED, PLAYED_REQUESTS
from services.cli.capacity.profile import MAX_ROLE_INSTANCES, ROLES_SIZED, InstanceCounts
from services.cli.capacity.workload_trace import TRACES
from services.cli.fleet.fleet_watch import add_bus_location

MAX_HOSTS = 4096
"""The most machines that instances share."""
LEAST_PLAYED_REQUESTS = 50
"""The fewest requests that a prediction plays: of fewer there is no tail."""
MAX_REGIONS = 256
"""The most regions that an answer is multiplied by."""
MAX_WINDOW_S = 86_400.0
"""The longest window of a trace."""
MAX_WATCH_S = 3600.0
"""The longest time that a stack is watched for its profile."""
ReadOption = TypeVar("ReadOption")


def build_capacity_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock capacity",
        description="Say what instances a load needs, by a profile of what they do. Figures are predictions.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    plan = commands.add_parser(
        "plan",
        help="predict a load, and say what it needs",
        description="Exit code 1 when an objective cannot be kept, 2 for bad input.",
    )
    _add_deployment(plan)
    _add_workload(plan)
    _add_answer(plan)
    profile = commands.add_parser(
        "profile",
        help="write what a running stack says of itself",
        description="Listen to a running stack, best one under load. Exit code 1 where a field is not known.",
    )
    profile.add_argument("--out", type=Path, required=True, metavar="FILE", help="where to, as JSON")
    profile.add_argument(
        "--watch", type=_watch, default=10.0, metavar="S", help="how long to listen; default 10"
    )
    add_bus_location(profile)
    return parser


def checked_capacity_args(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and look at what options are together; a usage error ends the program with code 2."""
    parser = build_capacity_parser()
    args = parser.parse_args(argv)
    if args.command == "plan":
        if args.trace is None and args.rate is None:
            parser.error("plan needs the load: pass --rate R or --trace KIND:FILE")
        if len({role for role, _ in args.instances}) != len(args.instances):
            parser.error("--instances names a role twice")
    return args


def given_counts(args: argparse.Namespace) -> InstanceCounts | None:
    """Return the instances that were named, one of each role that was not; None where none was."""
    return InstanceCounts(**dict(args.instances)) if args.instances else None


def _add_deployment(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the deployment")
    group.add_argument(
        "--profile", type=Path, required=True, metavar="FILE", help="TOML, or JSON by its name"
    )
    group.add_argument(
        "--instances",
        type=_instances,
        action="append",
        default=[],
        metavar="ROLE=N",
        help="predict these, of gateway, prefill and decode; default: find the fewest",
    )
    group.add_argument(
        "--hosts",
        type=_whole(1, MAX_HOSTS),
        metavar="N",
        help="instances share the cores of so many machines; default: each has its own",
    )
    group.add_argument(
        "--regions", type=_whole(1, MAX_REGIONS), default=1, metavar="N", help="all of it so often; default 1"
    )


def _add_workload(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the load of one region")
    kind = group.add_mutually_exclusive_group()
    kind.add_argument("--rate", type=_span(0.0, MAX_RATE), metavar="R", help="requests a second at the peak")
    kind.add_argument("--trace", type=_trace, metavar="KIND:FILE", help="mooncake:FILE or azure:FILE")
    group.add_argument(
        "--variation", type=_span(0.0, MAX_VARIATION), default=1.0, metavar="CV", help="of gaps; default 1"
    )
    group.add_argument("--input-tokens", type=_lengths, default=TokenLengths(256, 256), metavar="N")
    group.add_argument("--output-tokens", type=_lengths, default=TokenLengths(64, 64), metavar="N")
    group.add_argument(
        "--cached",
        type=_span(0.0, 1.0),
        metavar="SHARE",
        help="of prompts that is found, not computed; default 0, or what the trace repeats",
    )
    group.add_argument(
        "--window", type=_window, default=60.0, metavar="S", help="the busiest of a trace counts; default 60"
    )
    group.add_argument("--speed", type=_span(1e-6, MAX_SPEED), default=1.0, metavar="X", help="of a trace")
    group.add_argument(
        "--length-scale", type=_span(1e-6, 1e3), default=1.0, metavar="X", help="of a trace's lengths"
    )


def _add_answer(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is said")
    group.add_argument(
        "--slo", type=_level, action="append", default=[], metavar="OBJECTIVE", help=FORMS.replace("%", "%%")
    )
    group.add_argument("--prices", type=Path, metavar="FILE", help="TOML: machine_per_hour and currency")
    group.add_argument(
        "--measured", type=Path, metavar="FILE", help="of `penstock bench serve --json`, to compare with"
    )
    group.add_argument(
        "--requests",
        type=_whole(LEAST_PLAYED_REQUESTS, MAX_PLAYED_REQUESTS),
        default=PLAYED_REQUESTS,
        metavar="N",
        help=f"play so many for each prediction; default {PLAYED_REQUESTS}",
    )
    group.add_argument("--json", action="store_true", help="JSON instead of tables")


def _level(text: str) -> ServiceLevel:
    level = _said(ServiceLevel.read, text)
    if level.quantity in NOT_PREDICTED or level.source:
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot be predicted; measure it with `penstock bench serve`"
        )
    return level


def _lengths(text: str) -> TokenLengths:
    return _said(TokenLengths.read, text)


def _said(read: Callable[[str], ReadOption], text: str) -> ReadOption:
    """Return what is read, or have argparse say the ValueError in full."""
    try:
        return read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _instances(text: str) -> tuple[str, int]:
    role, equals, count = text.partition("=")
    if not equals or role not in ROLES_SIZED:
        raise argparse.ArgumentTypeError(f"{text!r} is no ROLE=N; roles are {', '.join(ROLES_SIZED)}")
    return role, _whole(1, MAX_ROLE_INSTANCES)(count)


def _trace(text: str) -> tuple[str, Path]:
    kind, _, file = text.partition(":")
    if kind not in TRACES or not file:
        raise argparse.ArgumentTypeError(f"{text!r} is no trace: write mooncake:FILE or azure:FILE")
    return kind, Path(file)


def _window(text: str) -> float:
    return _span(1e-3, MAX_WINDOW_S)(text)


def _watch(text: str) -> float:
    value = seconds(text)
    if value > MAX_WATCH_S:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than {MAX_WATCH_S:g} s")
    return value


def _span(least: float, most: float) -> Callable[[str], float]:
    def value(text: str) -> float:
        number = finite(text)
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not between {least:g} and {most:g}")
        return number

    return value


def _whole(least: int, most: int) -> Callable[[str], int]:
    def value(text: str) -> int:
        number = natural(text)
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return number

    return value
