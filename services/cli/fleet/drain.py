"""`penstock drain`: one instance takes nothing new, finishes what it has, and ends."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from services.cli.arguments import seconds
from services.cli.exit_codes import EXIT_EXPIRED, EXIT_FAILED
from services.cli.fleet.fleet_watch import (
    BusAddress,
    Fleet,
    Seen,
    add_bus_location,
    listening,
    run_on_bus,
)
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.messages import Drain, Heartbeat

ASK_TIMEOUT_S = 2.0
POLL_S = 0.05
DEFAULT_TIMEOUT_S = 60.0
"""Longer than a service takes to drain, unless it was configured otherwise."""
SILENT_S = 2.0
"""An instance that says nothing for so long has ended without saying so."""


def build_drain_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock drain",
        description="Let one instance finish its work and end; its streams lose nothing. `penstock up` "
        "starts it afresh, elsewhere whatever keeps the process decides. Exit code 1 when there is no such "
        "instance or it does not answer, 3 when it has not ended in time; it goes on draining then.",
    )
    parser.add_argument("instance", help="as `penstock status` names it, like decode-0")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=DEFAULT_TIMEOUT_S,
        metavar="SECONDS",
        help="how long to wait for its end (default: %(default)g)",
    )
    add_bus_location(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    args = build_drain_parser().parse_args(argv)
    return run_on_bus(args, "drain", lambda address: _drain(address, args.instance, args.timeout))


async def _drain(address: BusAddress, instance: str, timeout_s: float) -> int:
    async with listening(address) as (bus, fleet):
        await fleet.collect(address.expected)
        beat = _beat_of(fleet, instance)
        if beat is None:
            heard = ", ".join(seen.beat.instance for seen in fleet.all()) or "nobody"
            print(f"no instance {instance!r} is heard on this bus; there is {heard}")
            return EXIT_FAILED
        deadline = Deadline.after(ASK_TIMEOUT_S)
        await bus.ask(inbox(beat.role, beat.instance), Drain(), bus.envelope(deadline=deadline), deadline)
        print(f"{instance} drains; it holds {beat.live}", flush=True)
        began_s = time.monotonic()
        while (end := _end_of(fleet, beat)) is None:
            if time.monotonic() - began_s >= timeout_s:
                left = _beat_of(fleet, instance) or beat
                print(f"{instance} still holds {left.live} after {timeout_s:g} s and goes on draining")
                return EXIT_EXPIRED
            await asyncio.sleep(POLL_S)
    print(f"{instance} {end} after {time.monotonic() - began_s:.1f} s")
    return 0


def _beat_of(fleet: Fleet, instance: str) -> Heartbeat | None:
    """Names are unique beyond their role: they begin with it."""
    return next((seen.beat for seen in fleet.all() if seen.beat.instance == instance), None)


def _end_of(fleet: Fleet, beat: Heartbeat) -> str | None:
    """Return how the life that `beat` is of has ended; None while it has not."""
    seen = next((seen for seen in fleet.all() if _is_of(seen, beat)), None)
    if seen is None:
        return "has left"
    if seen.beat.incarnation != beat.incarnation:
        return f"has left and was started again as process {seen.beat.pid}"
    if time.monotonic() - seen.seen_s > SILENT_S:
        return "has gone silent"
    return None


def _is_of(seen: Seen, beat: Heartbeat) -> bool:
    return (seen.beat.role, seen.beat.instance) == (beat.role, beat.instance)
