"""`penstock drain`: one instance takes nothing new, finishes what it has, and ends."""

from __future__ import annotations

import argparse
import asyncio
import sys
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
ANSWER_TIMEOUT_S = 120.0
"""The longest wait for the user's answer; then it is no."""
SILENT_S = 2.0
"""An instance that says nothing for so long has ended without saying so."""


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
        beat = _beat_of(fleet, instance)
        if beat is None:
            heard = ", ".join(seen.beat.instance for seen in fleet.all()) or "nobody"
            print(f"no instance {instance!r} is heard on this bus; there is {heard}")
            return EXIT_FAILED
        if not args.yes and _is_last(fleet, beat) and not await _is_wanted(beat):
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


def _is_last(fleet: Fleet, beat: Heartbeat) -> bool:
    """Return whether no other instance of its role is ready for the same model."""
    others = (seen.beat for seen in fleet.all() if not _is_of(seen, beat))
    return not any((each.role, each.model, each.state) == (beat.role, beat.model, "ready") for each in others)


async def _is_wanted(beat: Heartbeat) -> bool:
    """Ask the user whether the last of a role is to go; where there is no terminal, say how to say so."""
    warning = (
        f"{beat.instance} is the last {beat.role} that is ready: requests that need one wait or fail until "
        "another is"
    )
    if not sys.stdin.isatty():
        print(f"penstock drain: {warning}; pass --yes to drain it all the same", file=sys.stderr)
        return False
    print(f"{warning}. Drain it all the same? [y/N] ", end="", file=sys.stderr, flush=True)
    if (await _typed_line()).strip().lower() in ("y", "yes"):
        return True
    print(f"penstock drain: {beat.instance} goes on as it was", file=sys.stderr)
    return False


async def _typed_line() -> str:
    """Return the line that is typed; "" at its end and when nobody answers in time."""
    loop, typed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin, typed.set)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await typed.wait()
    except TimeoutError:
        print(file=sys.stderr)
        return ""
    finally:
        loop.remove_reader(sys.stdin)
    return sys.stdin.readline()


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
