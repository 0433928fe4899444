"""`penstock flags`: change settings of the gateways at run time, and take that back."""

from __future__ import annotations

import argparse
import getpass
import json
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from services.cli.exit_codes import EXIT_EXPIRED, EXIT_FAILED
from services.cli.flags.blast_radius import LOOK_BACK_S, blast_radius
from services.cli.flags.flag_gateways import FlagGateways, KnownFlags
from services.cli.flags.flag_options import build_flags_parser
from services.cli.flags.flag_verdict import flag_verdict, flag_verdict_words
from services.cli.flags.flag_words import (
    diff_lines,
    history_table,
    in_force_table,
    radius_lines,
    settings_table,
)
from services.cli.fleet.draining import typed_yes
from services.cli.fleet.fleet_watch import BusAddress, listening, run_on_bus
from services.cli.view.terminal_text import escaped_controls
from shared.errors import InvalidRequest
from shared.flags.flag_history import ALL_CHANGES, MAX_FLAG_NAME_CHARS
from shared.messages import ChangeFlag, FlagChange, FlagSetting
from shared.seams.clock import SYSTEM_CLOCK

__all__ = ["build_flags_parser", "main"]


def main(argv: Sequence[str]) -> int:
    args = build_flags_parser().parse_args(argv)
    return run_on_bus(args, "flags", lambda address: _flags(address, args))


async def _flags(address: BusAddress, args: argparse.Namespace) -> int:
    async with listening(address) as (bus, fleet):
        await fleet.collect(address.expected)
        gateways = FlagGateways(bus, fleet)
        known = await gateways.known()
        for why in known.silent:
            _warn(f"{why}; it does not follow changes, or is of a version without them")
        match args.command:
            case "set":
                return await _set(gateways, known, args)
            case "rollback":
                return await _roll_back(gateways, known, args)
            case "verdict":
                return await _verdict(gateways, known, args)
            case _:
                _show(known, args)
                return 0


async def _set(gateways: FlagGateways, known: KnownFlags, args: argparse.Namespace) -> int:
    setting, value = args.assignment
    asked = ChangeFlag(
        author=args.author or _author(),
        reason=args.reason,
        setting=setting,
        value=value,
        tenant=args.tenant,
        model=args.model,
        share=args.share,
        guard=args.guard,
        lasts_s=args.lasts_s,
    )
    usual = _settings(known).get(setting)
    if usual is None:
        raise InvalidRequest(f"{setting!r} cannot be changed: `penstock flags list --settings` has what can")
    now_us = SYSTEM_CLOCK.unix_us()
    planned = FlagChange(1, "-", now_us, "", "", setting, value, args.tenant, args.model, args.share)
    traffic = await gateways.traffic(now_us - LOOK_BACK_S * 1_000_000)
    radius = blast_radius(planned, traffic, known.history.in_force(now_us), now_us)
    shown = sys.stderr if args.json else sys.stdout
    print(escaped_controls("\n".join(radius_lines(planned, radius, usual.value))), file=shown, flush=True)
    if not args.yes:
        if not sys.stdin.isatty():
            _warn("nothing was changed: pass --yes where there is no terminal to ask")
            return EXIT_FAILED
        if not await typed_yes("Change it?"):
            _warn("nothing was changed")
            return EXIT_FAILED
    return await _make(gateways, known, [asked], args)


async def _roll_back(gateways: FlagGateways, known: KnownFlags, args: argparse.Namespace) -> int:
    author = args.author or _author()
    versions = [args.version]
    if args.version == ALL_CHANGES:
        versions = [change.version for change in known.history.in_force(SYSTEM_CLOCK.unix_us())]
    if not versions:
        _print(args, (), "nothing is changed")
        return 0
    changes = [ChangeFlag(author, args.reason, rolls_back=version) for version in versions]
    return await _make(gateways, known, changes, args)


async def _make(
    gateways: FlagGateways, known: KnownFlags, changes: Sequence[ChangeFlag], args: argparse.Namespace
) -> int:
    """Make the changes, one at least, and wait until every gateway has them."""
    made = [await gateways.change(known, change) for change in changes]
    late = await gateways.late(made[-1].digest)
    names = [each.version for each in made]
    if args.json:
        print(json.dumps({"versions": names, "late": late}))
    elif not late:
        there, back = ", ".join(gateways.names), [change.rolls_back for change in changes]
        done = (
            f"{', '.join(back)} is rolled back, by {', '.join(names)}"
            if any(back)
            else f"{names[0]} is in force"
        )
        print(f"{done} at {there}")
    if late:
        _warn(f"{', '.join(names)} is in force, but {', '.join(late)} did not say so in time")
        return EXIT_EXPIRED
    return 0


async def _verdict(gateways: FlagGateways, known: KnownFlags, args: argparse.Namespace) -> int:
    change = known.history.find(args.version)
    if not change.setting:
        raise InvalidRequest(f"{change.version} rolls a change back: name one that sets something")
    traffic = await gateways.traffic(change.made_unix_us)
    verdict = flag_verdict(change, [row for told in traffic for row in told.rows], args.metric)
    if args.json:
        print(json.dumps({"version": change.version, "metric": args.metric, **asdict(verdict)}))
    else:
        print(escaped_controls("\n".join(flag_verdict_words(verdict, change, args.metric))))
    return 0


def _show(known: KnownFlags, args: argparse.Namespace) -> None:
    history, now_us = known.history, SYSTEM_CLOCK.unix_us()
    in_force, settings = history.in_force(now_us), _settings(known)
    if args.command == "history":
        _print(args, history.changes, history_table(history, now_us))
    elif args.command == "diff":
        before = history.as_of(_number(known, args.since))
        after = history.as_of(_number(known, args.until)) if args.until else in_force
        _print(args, [*before, *after], "\n".join(diff_lines(before, after)))
    elif args.settings:
        _print(args, settings.values(), settings_table([*settings.values()]))
    else:
        _print(args, in_force, in_force_table(in_force, settings))
        for name, report in known.reports.items():
            if unusable := {*report.unusable} & {change.version for change in in_force}:
                _warn(f"{name} does not know what {', '.join(sorted(unusable))} sets, and goes on without")


def _print(args: argparse.Namespace, said: Any, text: str) -> None:
    print(json.dumps([asdict(each) for each in said]) if args.json else escaped_controls(text))


def _number(known: KnownFlags, name: str) -> int:
    return 0 if name == "0" else known.history.find(name).number


def _settings(known: KnownFlags) -> dict[str, FlagSetting]:
    """Return what can be set, as the first gateway has it in [gateway]."""
    return {each.name: each for each in known.reports[min(known.reports)].settings}


def _author() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"[:MAX_FLAG_NAME_CHARS]


def _warn(sentence: str) -> None:
    print(f"penstock flags: {escaped_controls(sentence)}", file=sys.stderr)
