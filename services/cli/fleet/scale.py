"""`penstock scale`: a stack that serves has more instances of a role, or fewer, and no request is lost."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from services.cli.arguments import seconds
from services.cli.exit_codes import EXIT_EXPIRED, EXIT_FAILED
from services.cli.fleet.draining import POLL_S, beat_of
from services.cli.fleet.fleet_watch import (
    NATS_URL_OPTION,
    BusAddress,
    Fleet,
    add_bus_location,
    listening,
    run_on_bus,
)
from services.cli.fleet.restart import DEFAULT_TIMEOUT_S
from services.cli.stack_file import stack_instances, stack_scale, stack_shares_ports
from shared.deadline import SYSTEM_CLOCK
from shared.errors import Unavailable
from shared.files.roll_file import read_roll
from shared.files.scale_file import MAX_INSTANCES, StackScale, read_scale, write_scale
from shared.roles import REQUIRED_ROLES, ROLES

FOLLOW_TIMEOUT_S = 15.0
"""The longest time in which a launcher sees what it is to do: it looks once a second."""


def build_scale_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock scale",
        description="Have so many instances of a role in a stack here, while it serves. Those that come do "
        "what the others do; of more than are wanted the last ones finish their work, hand their streams "
        "over to the others, and end. Returns when all are ready and nobody is left who is to end. Exit code "
        "1 when it cannot be begun or an instance cannot be started, 3 when it is not so in time; it goes on "
        "then.",
    )
    parser.add_argument(
        "counts",
        metavar="ROLE=N",
        nargs="+",
        type=_count,
        help=f"a role of {', '.join(ROLES)}, and how many there are to be, from 1 to {MAX_INSTANCES}",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=DEFAULT_TIMEOUT_S,
        metavar="SECONDS",
        help="how long to wait, and what those that end may take for what they have (default: %(default)g)",
    )
    add_bus_location(parser)
    return parser


def _count(text: str) -> tuple[str, int]:
    role, _, number = text.partition("=")
    if role not in ROLES:
        raise argparse.ArgumentTypeError(f"there is no role {role!r}; there are {', '.join(ROLES)}")
    if not number.isdecimal() or not 1 <= int(number) <= MAX_INSTANCES:
        raise argparse.ArgumentTypeError(f"{text!r} is not {role}=N with N from 1 to {MAX_INSTANCES}")
    return role, int(number)


def main(argv: Sequence[str]) -> int:
    args = build_scale_parser().parse_args(argv)
    return run_on_bus(args, "scale", lambda address: _scale(address, args))


async def _scale(address: BusAddress, args: argparse.Namespace) -> int:
    state_dir = address.state_dir
    if state_dir is None:
        raise Unavailable(
            "it scales a stack of `penstock up` here, and the bus that is named may be any fleet's; pass "
            "--state-dir, and elsewhere let whatever keeps the processes start more of them"
        )
    async with listening(address) as (_, fleet):
        await fleet.collect(address.expected)
        counts = dict(args.counts)
        _check(state_dir, fleet, counts)
        before = read_scale(state_dir)
        kept = {} if before is None else before.counts
        absent = () if before is None else before.absent
        still_absent = tuple(name for name in absent if name.rpartition("-")[0] not in counts)
        scale = StackScale(SYSTEM_CLOCK.unix_us(), {**kept, **counts}, args.timeout, still_absent)
        write_scale(state_dir, scale)
        return await _until_so(state_dir, fleet, scale, counts)


def _check(state_dir: Path, fleet: Fleet, counts: Mapping[str, int]) -> None:
    """Raises Unavailable for what the stack cannot be scaled to, or not now."""
    if stack_scale(state_dir, NATS_URL_OPTION)[0] is None:
        raise Unavailable(
            "the launcher of this stack knows of no scale; end it with `penstock down` and start it with "
            "`penstock up`"
        )
    roll = read_roll(state_dir)
    if roll is not None and roll.stand_in:
        raise Unavailable(f"{roll.stand_in} stands in for others; finish the roll first: `penstock roll`")
    there = Counter(name.rpartition("-")[0] for name in stack_instances(state_dir, NATS_URL_OPTION))
    for role, count in counts.items():
        if not there[role]:
            raise Unavailable(
                f"the stack was started without {role}, so there is nothing to do the same; start it with "
                f"`penstock up --{role} {count}`"
            )
        if role == "gateway" and not stack_shares_ports(state_dir, NATS_URL_OPTION):
            raise Unavailable(
                "each gateway has ports of its own, which others know; set share_ports under [gateway], and "
                "start the stack again"
            )
        _check_models(fleet, role, count)


def _check_models(fleet: Fleet, role: str, count: int) -> None:
    """Each of several models keeps an instance: they have them in turn, so the first ones have all."""
    if role in REQUIRED_ROLES:
        models = {seen.beat.model for seen in fleet.all() if seen.beat.role == role}
        if count < len(models):
            raise Unavailable(f"{len(models)} models are served, and each needs a {role}: no fewer than that")


async def _until_so(state_dir: Path, fleet: Fleet, scale: StackScale, counts: Mapping[str, int]) -> int:
    """Wait until the launcher has what is wanted of the roles in `counts`, and say what happens."""
    wanted = {f"{role}-{number}" for role, count in counts.items() for number in range(count)}
    began_s, told = time.monotonic(), set[str]()

    def tell(sentence: str) -> None:
        if sentence not in told:
            told.add(sentence)
            print(sentence, flush=True)

    while (took_s := time.monotonic() - began_s) < scale.patience_s:
        number, trouble = stack_scale(state_dir, NATS_URL_OPTION)
        there = {
            name for name in stack_instances(state_dir, NATS_URL_OPTION) if name.rpartition("-")[0] in counts
        }
        if number == scale.number:
            if trouble:
                print(f"{trouble}; all that serve go on as they are")
                return EXIT_FAILED
            ready = {name for name in wanted if _is_ready(fleet, name)}
            if there == wanted == ready:
                print(f"{_words(counts)} after {took_s:.1f} s")
                return 0
            for name in sorted(there - wanted):
                tell(f"{name} drains")
            for name in sorted(wanted - ready):
                tell(f"{name} starts")
        elif took_s >= FOLLOW_TIMEOUT_S:
            raise Unavailable(
                f"the launcher has not done what {state_dir} asks for within {FOLLOW_TIMEOUT_S:g} s; "
                "`penstock logs penstock` shows what it says"
            )
        await asyncio.sleep(POLL_S)
    left = sorted((there - wanted) | {name for name in wanted if not _is_ready(fleet, name)})
    print(f"{', '.join(left)} took longer than {scale.patience_s:g} s; it goes on")
    return EXIT_EXPIRED


def _is_ready(fleet: Fleet, name: str) -> bool:
    beat = beat_of(fleet, name)
    return beat is not None and beat.state == "ready"


def _words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{role}={count}" for role, count in counts.items())
