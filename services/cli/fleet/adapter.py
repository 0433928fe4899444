"""`penstock adapter`: says which adapters there are to be over a model, and waits for its workers."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from services.cli.arguments import seconds
from services.cli.exit_codes import EXIT_EXPIRED, EXIT_FAILED
from services.cli.fleet.adapter_reports import SHOWN_DIGITS, adapter_states
from services.cli.fleet.fleet_watch import BusAddress, Fleet, add_bus_options, listening, run_on_bus
from services.cli.stack_file import chosen_state_dir, stack_adapter_file
from services.cli.view.table import table
from shared.config.config_file import MODEL_TABLE, find_config_file
from shared.config.fields import ConfigField, PathRule, Rule, checked_value
from shared.errors import InvalidRequest, NotFound, Unavailable
from shared.files.adapter_file import (
    WantedAdapter,
    adapter_name_problem,
    put_adapters,
    remove_adapter,
    split_adapter_tenants,
)
from shared.messages import AdapterReport, Heartbeat
from shared.roles import ENGINE_ROLES

FILE_VARIABLE = "PENSTOCK_MODEL_ADAPTER_FILE"
FILE_OPTION = "--file FILE"
DEFAULT_TIMEOUT_S = 60.0
POLL_S = 0.05
SILENT_S = 2.0
"""A worker that says nothing for so long is not waited for."""
HEAD = ("adapter", "digest", "rank", "tenants", "instances", "error")

Reports = dict[str, AdapterReport | None]
"""The report of each worker of the model on the adapter; None: it has said nothing."""


def main(argv: Sequence[str]) -> int:
    parser = build_adapter_parser()
    args = parser.parse_args(argv)
    if args.command == "list":
        return run_on_bus(args, "adapter", lambda address: _list(address, as_json=args.json))
    if args.command == "load":
        try:
            args.name, args.tenants = split_adapter_tenants(args.name)
        except InvalidRequest as error:
            parser.error(error.message)
        return run_on_bus(args, "adapter", lambda address: _load(address, args))
    if problem := adapter_name_problem(args.name):
        parser.error(problem)
    return run_on_bus(args, "adapter", lambda address: _unload(address, args))


def build_adapter_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock adapter",
        description="LoRA adapters over the models that are served. A request names one as MODEL:ADAPTER. "
        "Exit code 1 when a worker could not load it, 3 when not all have said so in time.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    load = commands.add_parser("load", help="load one at all workers of a model, or load it anew")
    unload = commands.add_parser("unload", help="take one away; streams that run with it go on to their end")
    asked_for = "what clients ask for behind the model's name"
    load.add_argument(
        "name",
        metavar="NAME[@TENANT+TENANT]",
        help=f"{asked_for}; for these tenants alone (default: for those of the entry that it replaces, or "
        "everybody)",
    )
    unload.add_argument("name", metavar="NAME", help=asked_for)
    load.add_argument("directory", metavar="DIR", help="that PEFT has saved, as the workers see it")
    for command in (load, unload):
        command.add_argument("--base", default="", metavar="MODEL", help="the model (default: the only one)")
        command.add_argument(
            "--file",
            default="",
            metavar="FILE",
            help=f"the workers' adapter_file (default: {FILE_VARIABLE}, what is configured, or the stack's)",
        )
        command.add_argument(
            "--timeout",
            type=seconds,
            default=DEFAULT_TIMEOUT_S,
            metavar="SECONDS",
            help="how long to wait for the workers (default: %(default)g)",
        )
        add_bus_options(command)
    add_bus_options(commands.add_parser("list", help="those that there are, and who has them"))
    return parser


async def _load(address: BusAddress, args: argparse.Namespace) -> int:
    directory, file = _absolute(args.directory), _adapter_file(args)
    async with listening(address) as (_, fleet):
        await fleet.collect(address.expected)
        base = _base(fleet, args.base)
        (entry,) = _edited(
            file, lambda: put_adapters(file, [WantedAdapter(base, args.name, directory, args.tenants)])
        )

        def has_acted(report: AdapterReport | None) -> bool:
            return report is not None and report.version >= entry.version

        reports = await _until(fleet, base, args.name, has_acted, args.timeout)
    waiting = [instance for instance, report in reports.items() if not has_acted(report)]
    acted = {instance: report for instance, report in reports.items() if has_acted(report)}
    failed = {instance: report.error for instance, report in acted.items() if report and report.error}
    digests = {report.digest for report in acted.values() if report and not report.error}
    adapter = f"{base}:{args.name}"
    if args.json:
        print(json.dumps({"adapter": adapter, "instances": _described(acted), "waiting": waiting}))
    for instance, error in failed.items():
        print(f"penstock adapter: {instance}: {error}", file=sys.stderr)
    if len(digests) > 1:
        print(
            f"penstock adapter: {adapter} is not the same for all workers: give them the same files",
            file=sys.stderr,
        )
    if waiting:
        _say_who_is_late(waiting, args.timeout)
    if failed or len(digests) > 1:
        return EXIT_FAILED
    if waiting:
        return EXIT_EXPIRED
    if not args.json:
        rank = max(report.rank for report in acted.values() if report)
        digest = max(digests)[:SHOWN_DIGITS]
        print(f"{adapter} is on {', '.join(sorted(acted))} (digest {digest}, rank {rank})")
    return 0


async def _unload(address: BusAddress, args: argparse.Namespace) -> int:
    file = _adapter_file(args)
    async with listening(address) as (_, fleet):
        await fleet.collect(address.expected)
        base = _base(fleet, args.base)
        _edited(file, lambda: remove_adapter(file, base, args.name))
        reports = await _until(fleet, base, args.name, lambda report: report is None, args.timeout)
    waiting = [instance for instance, report in reports.items() if report is not None]
    if args.json:
        print(json.dumps({"adapter": f"{base}:{args.name}", "waiting": waiting}))
    if waiting:
        _say_who_is_late(waiting, args.timeout)
        return EXIT_EXPIRED
    if not args.json:
        print(f"{base}:{args.name} is unloaded")
    return 0


async def _list(address: BusAddress, *, as_json: bool) -> int:
    async with listening(address) as (_, fleet):
        await fleet.collect(address.expected)
        beats = _workers(fleet)
    having = adapter_states(beats)
    if as_json:
        found = [{**asdict(state), "instances": names} for state, names in having.items()]
        print(json.dumps({"adapters": found}))
    elif having:
        rows = [
            (
                state.adapter,
                state.digest[:SHOWN_DIGITS] or "-",
                str(state.rank) if state.digest else "-",
                " ".join(state.tenants) or "all",
                " ".join(names),
                state.error,
            )
            for state, names in having.items()
        ]
        print(table(HEAD, rows))
    else:
        print("no worker has an adapter; `penstock adapter load NAME DIR` loads one")
    return 0


def _adapter_file(args: argparse.Namespace) -> Path:
    """Return the file that the workers follow. Raises NoStack where nobody says which file that is,
    ConfigError."""
    file = find_config_file(os.environ)
    place = f"{file.place(MODEL_TABLE, 'adapter_file')}: [{MODEL_TABLE}] adapter_file"
    field = ConfigField("adapter_file", str, Rule("a file"))
    said = checked_value(field, file.table(MODEL_TABLE).get("adapter_file", ""), place)
    configured = file.value(said, PathRule.ALWAYS)
    named = args.file or os.environ.get(FILE_VARIABLE, "") or configured
    return Path(named or stack_adapter_file(chosen_state_dir(args, FILE_OPTION), FILE_OPTION)).expanduser()


def _absolute(directory: str) -> str:
    """It need not be here: workers may see what this machine does not."""
    return str(Path.cwd() / Path(directory).expanduser())


def _edited(file: Path, edit: Callable[[], Any]) -> Any:
    try:
        return edit()
    except OSError as error:
        raise Unavailable(f"the adapter file {file} cannot be written ({error.strerror})") from error


def _workers(fleet: Fleet) -> list[Heartbeat]:
    """Return the workers that are ready; one that still loads begins with what the file says."""
    seen = fleet.all(since_s=time.monotonic() - SILENT_S)
    return [each.beat for each in seen if each.beat.role in ENGINE_ROLES and each.beat.state == "ready"]


def _base(fleet: Fleet, wanted: str) -> str:
    """The model that an adapter is over. Raises NotFound or InvalidRequest."""
    workers = _workers(fleet)
    models = sorted({beat.model for beat in workers})
    served = sorted({beat.model for beat in workers if beat.role == "decode"})
    if wanted in models:
        return wanted
    if not served:
        raise Unavailable("no decode worker is ready: start one, or wait for it")
    if wanted:
        raise NotFound(f"no worker has the model {wanted!r}: there is {', '.join(models)}")
    if len(served) > 1:
        raise InvalidRequest(f"several models are served: pass --base with one of {', '.join(served)}")
    return served[0]


async def _until(
    fleet: Fleet, base: str, name: str, done: Callable[[AdapterReport | None], bool], timeout_s: float
) -> Reports:
    """Wait until all workers are done or the time is up, and return what they say. Raises Unavailable where
    nobody is."""
    ends_s = time.monotonic() + timeout_s
    while True:
        beats = [beat for beat in _workers(fleet) if beat.model == base]
        reports: Reports = {
            beat.instance: next((each for each in beat.worker.adapters if each.name == name), None)
            for beat in beats
        }
        if reports and all(map(done, reports.values())):
            return reports
        if time.monotonic() >= ends_s:
            if not reports:
                raise Unavailable(f"no worker of {base} is ready any more; one that comes follows the file")
            return reports
        await asyncio.sleep(POLL_S)


def _described(reports: Reports) -> list[dict[str, Any]]:
    return [
        {"instance": instance, "digest": report.digest, "rank": report.rank, "error": report.error}
        for instance, report in sorted(reports.items())
        if report is not None
    ]


def _say_who_is_late(waiting: Sequence[str], timeout_s: float) -> None:
    print(
        f"penstock adapter: {', '.join(waiting)} did not follow within {timeout_s:g} s: is adapter_file the "
        "same file there?",
        file=sys.stderr,
    )
