"""`penstock plan`: what instances the coming load needs, and have it so."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from services.cli.capacity.profile_file import read_profile
from services.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from services.cli.fleet.fleet_watch import BusAddress, listening, run_on_bus
from services.cli.planner.compose_scaler import ComposeScaler
from services.cli.planner.fleet_planner import FleetPlanner, PlanRound
from services.cli.planner.keda_scaler import KedaScaler
from services.cli.planner.launcher_scaler import LauncherScaler
from services.cli.planner.plan_loop import PlanLoop, unix_s
from services.cli.planner.plan_options import build_plan_parser, checked_plan_args
from services.cli.planner.plan_record import AUDIT_NAME, SEASONS_NAME, PlanRecord
from services.cli.planner.plan_words import plan_json, plan_words
from services.cli.planner.planner_settings import PlannerSettings, read_planner_settings
from services.cli.planner.scaler import Scaler
from services.cli.planner.seasons import Seasons, read_seasons
from shared.errors import InvalidRequest, Unavailable
from shared.process.cores import usable_cores
from shared.tasks import cancel_until_done, start_task
from shared.telemetry import logging
from shared.telemetry.http import TelemetryServer

__all__ = ["build_plan_parser", "main"]

MakePlanner = Callable[[Mapping[str, Seasons]], FleetPlanner]


def main(argv: Sequence[str]) -> int:
    args = checked_plan_args(argv)
    try:
        settings = read_planner_settings(args.settings) if args.settings else PlannerSettings()
        if settings.hosts is None and args.act == "launcher":
            settings = replace(settings, hosts=1)
        profile = read_profile(settings.profile) if settings.profile else None
    except InvalidRequest as error:
        print(f"penstock plan: {error}", file=sys.stderr)
        return EXIT_USAGE

    def planner(seasons: Mapping[str, Seasons]) -> FleetPlanner:
        return FleetPlanner(settings, profile, unix_s(), usable_cores(), seasons)

    return run_on_bus(args, "plan", lambda address: _plan(address, args, planner))


async def _plan(address: BusAddress, args: argparse.Namespace, make_planner: MakePlanner) -> int:
    folder = address.state_dir
    seasons_path = args.seasons or (folder / SEASONS_NAME if folder else None)
    planner = make_planner(read_seasons(seasons_path) if seasons_path else {})
    if args.act == "nothing":
        return await _show(address, args, planner)
    logging.configure("info", "planner", "planner")
    scaler = await _scaler(address, args)
    telemetry = TelemetryServer("planner", lambda: True)
    await telemetry.start(*args.metrics)
    try:
        record = PlanRecord(folder / AUDIT_NAME if folder else None, seasons_path)
        await _act(address, planner, scaler, record)
    finally:
        await telemetry.close()
        if isinstance(scaler, KedaScaler):
            await scaler.close()
    return 0


async def _show(address: BusAddress, args: argparse.Namespace, planner: FleetPlanner) -> int:
    """Watch, and print the last plan of that time."""
    async with listening(address) as (_, fleet):
        await fleet.collect(address.expected)
        end_s = time.monotonic() + args.watch
        loop = PlanLoop(fleet, planner, None, PlanRecord(None))
        done = await loop.run(lambda _: time.monotonic() >= end_s)
    if args.json:
        print(json.dumps(plan_json(done, planner.cold_start_s), indent=1))
    else:
        print(plan_words(done, planner.cold_start_s))
    return EXIT_FAILED if done.troubles else 0


async def _act(address: BusAddress, planner: FleetPlanner, scaler: Scaler, record: PlanRecord) -> None:
    """Plan and scale until SIGINT or SIGTERM."""
    async with listening(address) as (bus, fleet):
        await fleet.collect(address.expected)
        work = PlanLoop(fleet, planner, scaler, record).run(_never)
        task, lost = start_task(work, name="plan"), start_task(bus.lost.wait(), name="bus-lost")
        for signum in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signum, task.cancel)
        try:
            await asyncio.wait((task, lost), return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled():
                task.result()
        finally:
            await cancel_until_done(task, lost)
            record.learnt(planner.seasons)
    if bus.lost.is_set():
        raise Unavailable(bus.why_lost)


def _never(_: PlanRound) -> bool:
    return False


async def _scaler(address: BusAddress, args: argparse.Namespace) -> Scaler:
    """Raises Unavailable where what is to act is not here."""
    if args.act == "keda":
        keda = KedaScaler(time.monotonic)
        try:
            await keda.start(args.listen)
        except RuntimeError as error:
            raise Unavailable(f"--listen {args.listen} cannot be had ({error}); name another one") from error
        return keda
    if args.act == "launcher":
        if address.state_dir is None:
            raise Unavailable("--act launcher scales a stack of `penstock up` here: pass --state-dir")
        return LauncherScaler(address.state_dir)
    return ComposeScaler(args.compose_file, dict(args.compose_suffix), run=args.act == "compose")
