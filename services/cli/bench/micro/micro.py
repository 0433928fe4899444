"""`penstock bench micro`: what each hop costs on this machine, over its floor, in one run."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence

import uvloop

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # it would say that it takes no part in starting processes
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # nor should it: they become other programs at once

from services.cli.bench.micro.bus_trip import measure_bus_trip
from services.cli.bench.micro.cost_page import NOTE, cost_table, costs_as_json, library_versions
from services.cli.bench.micro.cost_rows import CostRow
from services.cli.bench.micro.edge_connections import measure_edge_connections
from services.cli.bench.micro.kv_paths import measure_kv_paths
from services.cli.bench.micro.micro_options import PARTS, build_bench_micro_parser
from services.cli.bench.micro.stack_life import measure_stack_life
from services.cli.bench.micro.token_events import measure_token_events
from services.cli.bench.report.machine import MachineState
from services.cli.exit_codes import EXIT_FAILED
from shared.errors import PenstockError, Unavailable
from shared.process.quiet_end import run_loop
from shared.telemetry import logging

MEASURES: dict[str, Callable[[float], Awaitable[list[CostRow]]]] = {
    "bus": measure_bus_trip,
    "kv": measure_kv_paths,
    "events": measure_token_events,
    "edges": measure_edge_connections,
    "stack": measure_stack_life,
}
EXIT_TERMINATED = 128 + signal.SIGTERM


def main(argv: Sequence[str]) -> int:
    """0 when all is measured; 1 when something does not answer, 2 for bad input."""
    args = build_bench_micro_parser().parse_args(argv)
    logging.configure("error", "cli", "cli")
    try:
        if sys.platform != "linux":
            raise Unavailable("it needs Linux, for CPU time of processes and for shared pools")
        if args.json:
            args.json.touch()  # before anything is measured, not after
        return run_loop(_measure_parts(args), uvloop.new_event_loop)
    except (PenstockError, OSError) as error:
        print(f"penstock bench micro: {error}", file=sys.stderr)
        return EXIT_FAILED
    except asyncio.CancelledError:
        return EXIT_TERMINATED


async def _measure_parts(args: argparse.Namespace) -> int:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):  # else what was started would be left behind
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    machine = MachineState.now()
    print(f"on {machine.words()}; " + ", ".join(f"{name} {v}" for name, v in library_versions().items()))
    for sentence in machine.warnings():
        print(f"warning: {sentence}")
    parts: dict[str, list[CostRow]] = {}
    for name in PARTS:
        if args.only and name not in args.only:
            continue
        parts[name] = await MEASURES[name](args.seconds)
        print(f"\n{PARTS[name]}\n{cost_table(parts[name])}", flush=True)
    print(f"\n{NOTE}")
    if args.json:
        args.json.write_text(
            json.dumps(costs_as_json(parts, machine, args.seconds), indent=1) + "\n", "utf-8"
        )
    return 0
