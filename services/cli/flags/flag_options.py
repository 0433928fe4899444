"""Options of `penstock flags`."""

from __future__ import annotations

import argparse
import re
from typing import NamedTuple

from services.cli.arguments import finite
from services.cli.fleet.fleet_watch import add_bus_options
from shared.errors import InvalidRequest
from shared.flags.flag_history import ALL_CHANGES, MAX_FLAG_DAYS
from shared.flags.guard import TOTAL, TPOT, TTFT, parse_guard

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,8})([smhd])")


class Assignment(NamedTuple):
    """A setting, and the text of its new value."""

    setting: str
    value: str


def build_flags_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock flags",
        description="Change settings of the gateways at run time, for a share of the requests, a tenant or a "
        "model. Exit code 1 when it was not done, 2 for what cannot be set, 3 when not all gateways have "
        "followed in time.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_set(commands.add_parser("set", help="make a change; says whom it reaches, and asks"))
    listing = commands.add_parser("list", help="show the changes that are in force")
    listing.add_argument("--settings", action="store_true", help="show what can be set instead")
    commands.add_parser("history", help="show all changes, with who made them and how they ended")
    diff = commands.add_parser("diff", help="show what another moment had in force, against now")
    diff.add_argument(
        "since",
        nargs="?",
        default="0",
        metavar="VERSION",
        help="as this had just been made (default: none)",
    )
    diff.add_argument("until", nargs="?", default="", metavar="VERSION", help="against this, in place of now")
    rollback = commands.add_parser("rollback", help="end a change at once")
    rollback.add_argument("version", metavar=f"VERSION|{ALL_CHANGES}", help="one that is in force, or all")
    verdict = commands.add_parser("verdict", help="compare those who have a change with those who have not")
    verdict.add_argument("version", metavar="VERSION", help="of a change for a share")
    verdict.add_argument(
        "--metric", choices=(TTFT, TPOT, TOTAL), default=TTFT, help="what is compared (default: %(default)s)"
    )
    for command in (rollback, commands.choices["set"]):
        command.add_argument("--reason", required=True, metavar="TEXT", help="why; it stays in the history")
        command.add_argument("--author", default="", metavar="NAME", help="who (default: USER@HOST)")
    for command in commands.choices.values():
        add_bus_options(command)
    return parser


def _add_set(command: argparse.ArgumentParser) -> None:
    command.add_argument("assignment", type=_assignment, metavar="NAME=VALUE", help="a setting of [gateway]")
    command.add_argument(
        "--share", type=_share, default=1.0, metavar="SHARE", help="of the requests, as 5%% or 0.05"
    )
    command.add_argument("--tenant", default="", metavar="NAME", help="those of this tenant alone")
    command.add_argument("--model", default="", metavar="MODEL", help="those that ask for this model alone")
    command.add_argument(
        "--guard", type=_guard, default="", metavar="BOUNDS", help="like p99_ttft<300ms,errors<1%%: it ends"
    )
    command.add_argument(
        "--for",
        dest="lasts_s",
        type=_duration,
        default=0,
        metavar="TIME",
        help="like 30m, 12h or 7d (default: until it is rolled back)",
    )
    command.add_argument("--yes", action="store_true", help="do not ask")


def _assignment(text: str) -> Assignment:
    setting, equals, value = text.partition("=")
    if not equals or not setting:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not NAME=VALUE")
    return Assignment(setting, value)


def _share(text: str) -> float:
    share = finite(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share: write 5% or 0.05, above 0 and up to all")
    return share


def _duration(text: str) -> int:
    found = _DURATION.fullmatch(text)
    seconds = int(found[1]) * UNITS_S[found[2]] if found else 0
    if not 0 < seconds <= MAX_FLAG_DAYS * UNITS_S["d"]:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: write 90s, 30m, 12h or 7d, up to {MAX_FLAG_DAYS}d"
        )
    return seconds


def _guard(text: str) -> str:
    try:
        parse_guard(text)
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(error.message) from error
    return text
