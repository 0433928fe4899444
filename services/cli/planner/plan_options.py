"""The options of `penstock plan`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from services.cli.arguments import seconds
from services.cli.fleet.fleet_watch import add_bus_options
from services.cli.planner.fleet_planner import ROUND_S

ACTS = ("nothing", "launcher", "compose", "compose-print", "keda")
MAX_WATCHED_S = 3600.0
"""The longest time that a fleet is watched for one plan."""


def build_plan_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock plan",
        description="Forecast what will be asked, and say how many prefill and decode workers that needs, "
        "and why. With --act it goes on, and has the fleet scaled so. Exit code 1 where nothing can be "
        "planned, 2 for bad input.",
    )
    parser.add_argument(
        "--settings", type=Path, metavar="FILE", help="TOML with a table [planner]: objectives, limits, times"
    )
    parser.add_argument(
        "--watch",
        type=_watch,
        default=2 * ROUND_S + 1,
        metavar="S",
        help="how long to look before the plan is shown, where nothing acts; default %(default)g",
    )
    parser.add_argument(
        "--act",
        choices=ACTS,
        default="nothing",
        help="go on, and scale: launcher is the stack of `penstock up` here, compose runs docker compose, "
        "compose-print prints its command, keda answers KEDA's external scaler",
    )
    parser.add_argument(
        "--compose-file",
        action="append",
        default=[],
        metavar="FILE",
        help="as docker compose -f; may be repeated",
    )
    parser.add_argument(
        "--compose-suffix",
        action="append",
        default=[],
        type=_suffix,
        metavar="MODEL=SUFFIX",
        help="what the services of another model than the first end with, as small=-second; may be repeated",
    )
    parser.add_argument(
        "--listen", default="127.0.0.1:6000", metavar="HOST:PORT", help="where KEDA asks; default %(default)s"
    )
    parser.add_argument(
        "--metrics",
        type=_place,
        default=("127.0.0.1", 0),
        metavar="HOST:PORT",
        help="where the planner shows its metrics; default: a free port of this machine",
    )
    parser.add_argument(
        "--seasons",
        type=Path,
        metavar="FILE",
        help="where what is usual by time of day and week is kept; default: in the state directory, if any",
    )
    add_bus_options(parser)
    return parser


def checked_plan_args(argv: Sequence[str]) -> argparse.Namespace:
    """A usage error ends the program with code 2."""
    parser = build_plan_parser()
    args = parser.parse_args(argv)
    if args.compose_suffix and not args.act.startswith("compose"):
        parser.error("--compose-suffix is for --act compose")
    return args


def _suffix(text: str) -> tuple[str, str]:
    model, equals, suffix = text.rpartition("=")
    if not equals or not model or not suffix:
        raise argparse.ArgumentTypeError(f"{text!r} is not MODEL=SUFFIX, as small=-second")
    return model, suffix


def _watch(text: str) -> float:
    value = seconds(text)
    if value > MAX_WATCHED_S:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than {MAX_WATCHED_S:g} s")
    return value


def _place(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)
