"""`penstock restart`: an instance finishes its work and ends, and is waited for until it is ready again."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from services.cli.arguments import seconds
from services.cli.exit_codes import EXIT_EXPIRED, EXIT_FAILED
from services.cli.fleet.draining import POLL_S, begin_drain, end_of, is_last, is_wanted
from services.cli.fleet.fleet_watch import BusAddress, Fleet, add_bus_location, listening, run_on_bus
from shared.bus import Bus
from shared.messages import Heartbeat

DEFAULT_TIMEOUT_S = 180.0
"""Longer than a service takes to drain and a model to load, unless it was configured otherwise."""


def build_restart_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock restart",
        description="Let an instance finish its work and end, and wait until it is ready again; of a role "
        "each instance, one after another. Whatever keeps the process starts it, as `penstock up` does. The "
        "last ready one of its role is restarted only when you say so. Exit code 1 when there is no such "
        "instance, it does not answer or you did not say so, 3 when it was not ready again in time.",
    )
    parser.add_argument(
        "name",
        metavar="INSTANCE",
        help="as `penstock status` names it, like decode-0, or a role, like decode",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=DEFAULT_TIMEOUT_S,
        metavar="SECONDS",
        help="how long to wait for each until it is ready again (default: %(default)g)",
    )
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
        beats = [seen.beat for seen in fleet.all() if args.name in (seen.beat.instance, seen.beat.role)]
        if not beats:
            heard = ", ".join(seen.beat.instance for seen in fleet.all()) or "nobody"
            print(f"no instance or role {args.name!r} is heard on this bus; there is {heard}")
            return EXIT_FAILED
        for number, beat in enumerate(beats, 1):
            code = await _restart(bus, fleet, beat, args)
            if code:
                if left := ", ".join(beat.instance for beat in beats[number:]):
                    print(f"not restarted: {left}")
                return code
    return 0


async def _restart(bus: Bus, fleet: Fleet, beat: Heartbeat, args: argparse.Namespace) -> int:
    instance = beat.instance
    if not args.yes and is_last(fleet, beat) and not await is_wanted(beat, "restart"):
        return EXIT_FAILED
    began_s = time.monotonic()
    await begin_drain(bus, beat)
    print(f"{instance} drains; it holds {beat.live}", flush=True)
    ended = False
    while (again := _life_after(fleet, beat)) is None or again.state != "ready":
        took_s = time.monotonic() - began_s
        if not ended and end_of(fleet, beat) is not None:
            ended = True
            print(f"{instance} has ended after {took_s:.1f} s; it is started again …", flush=True)
        if took_s >= args.timeout:
            print(_late(instance, again, ended=ended, timeout_s=args.timeout))
            return EXIT_EXPIRED
        await asyncio.sleep(POLL_S)
    print(f"{instance} is ready again after {time.monotonic() - began_s:.1f} s, as process {again.pid}")
    return 0


def _life_after(fleet: Fleet, beat: Heartbeat) -> Heartbeat | None:
    """Return the last heartbeat of the life that came after that one, None while there is none."""
    same = (seen.beat for seen in fleet.all() if seen.beat.instance == beat.instance)
    return next((each for each in same if each.incarnation != beat.incarnation), None)


def _late(instance: str, again: Heartbeat | None, *, ended: bool, timeout_s: float) -> str:
    if not ended:
        return f"{instance} has not ended after {timeout_s:g} s and goes on draining"
    if again is None:
        return f"{instance} has ended, and nobody has started it again after {timeout_s:g} s"
    return (
        f"{instance} has ended and is not ready again after {timeout_s:g} s, it is {again.state}; "
        f"`penstock logs {instance}` shows what it says"
    )
