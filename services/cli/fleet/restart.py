"""`penstock restart`: an instance finishes its work and ends, and is waited for until it is ready again."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from services.cli.arguments import seconds
from services.cli.exit_codes import EXIT_EXPIRED, EXIT_FAILED
from services.cli.fleet.draining import is_last, is_wanted
from services.cli.fleet.fleet_watch import (
    NATS_URL_OPTION,
    BusAddress,
    Fleet,
    add_bus_location,
    listening,
    run_on_bus,
)
from services.cli.fleet.instance_restart import InstanceLife, InstanceRestart
from services.cli.fleet.stack_process import stack_process
from services.cli.stack_file import stack_pids

DEFAULT_TIMEOUT_S = 180.0
"""Longer than a service takes to drain and a model to load, unless it was configured otherwise."""
DEFAULT_KILL_AFTER_S = 10.0
"""Longer than a process may hang on a busy machine, and go on."""


def add_restart_limits(parser: argparse.ArgumentParser) -> None:
    """Add how long each instance that is started anew may take and may hang."""
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=DEFAULT_TIMEOUT_S,
        metavar="SECONDS",
        help="how long to wait for each until it is ready again (default: %(default)g)",
    )
    parser.add_argument(
        "--kill-after",
        type=seconds,
        default=DEFAULT_KILL_AFTER_S,
        metavar="SECONDS",
        help="kill (SIGKILL) one that gives no sign of life for so long, of a stack here (default: "
        "%(default)g)",
    )


def build_restart_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock restart",
        description="Let an instance finish its work and end, and wait until it is ready again; of a role "
        "each instance, one after another. Whatever keeps the process starts it, as `penstock up` does. One "
        "of a stack here that hangs, so that it neither answers nor says anything, is killed. The last ready "
        "one of its role is restarted only when you say so. Exit code 1 when there is no such instance, it "
        "hangs elsewhere or you did not say so, 3 when it was not ready again in time.",
    )
    parser.add_argument(
        "name",
        metavar="INSTANCE",
        help="as `penstock status` names it, like decode-0, or a role, like decode",
    )
    add_restart_limits(parser)
    parser.add_argument(
        "--yes", action="store_true", help="do not ask, also where one is the last of its role"
    )
    add_bus_location(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    args = build_restart_parser().parse_args(argv)
    return run_on_bus(args, "restart", lambda address: _restart_all(address, args))


async def _restart_all(address: BusAddress, args: argparse.Namespace) -> int:
    async with listening(address) as (bus, fleet):
        await fleet.collect(address.expected)
        wanted = _wanted(fleet, address, args.name)
        if not wanted:
            heard = ", ".join(seen.beat.instance for seen in fleet.all()) or "nobody"
            print(f"no instance or role {args.name!r} is heard on this bus; there is {heard}")
            return EXIT_FAILED
        for number, life in enumerate(wanted, 1):
            with stack_process(address.state_dir, life.pid) as process:
                code = await _restart(InstanceRestart(bus, fleet, life, process, args.kill_after), args)
            if code:
                if left := ", ".join(life.instance for life in wanted[number:]):
                    print(f"not restarted: {left}")
                return code
    return 0


async def _restart(restart: InstanceRestart, args: argparse.Namespace) -> int:
    beat = restart.life.beat
    if (
        beat is not None
        and not args.yes
        and is_last(restart.fleet, beat)
        and not await is_wanted(beat, "restart")
    ):
        return EXIT_FAILED
    return 0 if await restart.run(args.timeout) else EXIT_EXPIRED


def _wanted(fleet: Fleet, address: BusAddress, name: str) -> list[InstanceLife]:
    """Return the lives of that instance or role: those that are heard, and those of a stack here that are
    not."""
    lives = {
        seen.beat.instance: InstanceLife(seen.beat.instance, seen.beat.pid, seen.beat) for seen in fleet.all()
    }
    if address.state_dir is not None:
        for instance, pid in stack_pids(address.state_dir, NATS_URL_OPTION).items():
            lives.setdefault(instance, InstanceLife(instance, pid, None))
    return [life for _, life in sorted(lives.items()) if name in (life.instance, life.role)]
