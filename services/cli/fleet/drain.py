"""`penstock drain`: one instance takes nothing new, finishes what it has, and ends."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from services.cli.arguments import seconds
from services.cli.exit_codes import EXIT_EXPIRED, EXIT_FAILED
from services.cli.fleet.draining import POLL_S, beat_of, begin_drain, end_of, is_last, is_wanted
from services.cli.fleet.fleet_watch import BusAddress, add_bus_location, listening, run_on_bus

DEFAULT_TIMEOUT_S = 60.0
"""Longer than a service takes to drain, unless it was configured otherwise."""


def build_drain_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock drain",
        description="Let one instance finish its work and end; its streams lose nothing. `penstock up` "
        "starts it afresh, elsewhere whatever keeps the process decides. The last ready one of its role is "
        "drained only when you say so. Exit code 1 when there is no such instance, it does not answer or you "
        "did not say so, 3 when it has not ended in time; it goes on draining then.",
    )
    parser.add_argument("instance", help="as `penstock status` names it, like decode-0")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=DEFAULT_TIMEOUT_S,
        metavar="SECONDS",
        help="how long to wait for its end (default: %(default)g)",
    )
    parser.add_argument(
        "--yes", action="store_true", help="do not ask, also where it is the last of its role"
    )
    add_bus_location(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    args = build_drain_parser().parse_args(argv)
    return run_on_bus(args, "drain", lambda address: _drain(address, args))


async def _drain(address: BusAddress, args: argparse.Namespace) -> int:
    instance, timeout_s = args.instance, args.timeout
    async with listening(address) as (bus, fleet):
        await fleet.collect(address.expected)
        beat = beat_of(fleet, instance)
        if beat is None:
            heard = ", ".join(seen.beat.instance for seen in fleet.all()) or "nobody"
            print(f"no instance {instance!r} is heard on this bus; there is {heard}")
            return EXIT_FAILED
        if not args.yes and is_last(fleet, beat) and not await is_wanted(beat, "drain"):
            return EXIT_FAILED
        await begin_drain(bus, beat.role, instance)
        print(f"{instance} drains; it holds {beat.live}", flush=True)
        began_s = time.monotonic()
        while (end := end_of(fleet, beat)) is None:
            if time.monotonic() - began_s >= timeout_s:
                left = beat_of(fleet, instance) or beat
                print(f"{instance} still holds {left.live} after {timeout_s:g} s and goes on draining")
                return EXIT_EXPIRED
            await asyncio.sleep(POLL_S)
    print(f"{instance} {end} after {time.monotonic() - began_s:.1f} s")
    return 0
