"""Listening to the fleet from the command line: every instance's latest heartbeat."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from services.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from services.cli.stack_file import (
    add_state_dir,
    chosen_state_dir,
    stack_address,
    stack_credentials,
    stack_names,
)
from shared.bus import Bus, Delivery
from shared.bus.credentials import Credentials, load_credentials
from shared.bus.fleet_state import HEARTBEAT_S
from shared.bus.subjects import FLEET_ALL, HEARTBEAT_REQUEST_ALL
from shared.deadline import ClockOffsets, ClockReading
from shared.errors import InvalidRequest, PenstockError
from shared.messages import Heartbeat, HeartbeatRequest
from shared.process.quiet_end import run_loop
from shared.roles import ROLES
from shared.telemetry import logging

COLLECT_S = 0.6
"""Everyone is asked for a heartbeat, and those that work send two within this time."""
COLLECT_AT_MOST_S = 5.0
"""The longest wait for instances that we know of: on a busy machine they are late."""
COLLECT_POLL_S = 0.02

RATE_LASTS_S = 2.0
"""A rate is one of the past after so long without another step."""

MAX_INSTANCES = 4096
NATS_URL_OPTION = "--nats-url URL"
URL_VARIABLE = "PENSTOCK_NATS_URL"
CREDENTIALS_VARIABLE = "PENSTOCK_NATS_CREDENTIALS"


@dataclass(frozen=True, slots=True)
class BusAddress:
    """The address of the bus, and who we are there (None = nobody, on a bus that is open). `expected` are the
    instances that are known to be on it, `state_dir` that of the stack here that it is of, None of none."""

    url: str
    credentials: Credentials | None
    expected: frozenset[str] = frozenset()
    state_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A heartbeat, and our time of day minus that of its sender, plus the fastest way here.

    `moved_s` is when its steps were first heard to be as many as they are.
    """

    beat: Heartbeat
    skew_us: int
    seen_s: float
    moved_s: float

    @property
    def silent_since_s(self) -> float:
        """One that rests has said how long it will be silent."""
        return self.seen_s + max(0.0, self.beat.next_ms / 1e3 - HEARTBEAT_S)

    @property
    def tokens_per_s(self) -> float:
        """0 for one that stands still: a heartbeat goes on telling the last rate that was measured."""
        idle = not self.beat.live or self.seen_s - self.moved_s > RATE_LASTS_S
        return 0.0 if idle else self.beat.worker.tokens_per_s


class Fleet:
    """The instances that have been heard, by (role, instance)."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], Seen] = {}
        self._clocks = ClockOffsets()

    def receive(self, delivery: Delivery) -> None:
        beat = delivery.message
        if isinstance(beat, Heartbeat):
            self.observe(beat, ClockReading.now(), time.monotonic())

    def observe(self, beat: Heartbeat, received: ClockReading, now_s: float) -> None:
        key = (beat.role, beat.instance)
        if beat.state == "stopped":
            self._seen.pop(key, None)
            self._clocks.forget(beat.instance)
            return
        before = self._seen.get(key)
        if before is None and len(self._seen) >= MAX_INSTANCES:
            return
        moved_s = now_s
        if before is not None and before.beat.incarnation == beat.incarnation:
            moved_s = before.moved_s if before.beat.steps == beat.steps else now_s
        else:
            self._clocks.forget(beat.instance)
        self._clocks.observe(beat.instance, ClockReading(beat.sent_unix_us, beat.sent_steady_us), received)
        self._seen[key] = Seen(beat, self._clocks.skew_us(beat.instance), now_s, moved_s)

    async def collect(self, expected: frozenset[str]) -> None:
        """Listen until all of these have been heard, or somebody where we expect nobody by name: for
        COLLECT_S at least and COLLECT_AT_MOST_S at most."""
        began_s = time.monotonic()
        await asyncio.sleep(COLLECT_S)
        while time.monotonic() - began_s < COLLECT_AT_MOST_S:
            heard = {instance for _, instance in self._seen}
            if heard and expected <= heard:
                return
            await asyncio.sleep(COLLECT_POLL_S)

    def all(self, since_s: float = 0.0) -> list[Seen]:
        """Return those heard since then, or not expected to be heard yet; sorted by role and instance."""
        return [seen for _, seen in sorted(self._seen.items()) if seen.silent_since_s >= since_s]


@asynccontextmanager
async def listening(address: BusAddress) -> AsyncIterator[tuple[Bus, Fleet]]:
    """The bus, and a fleet that fills while this is open. Raises Unavailable without a NATS server."""
    bus = await Bus.connect(address.url, name="penstock-cli", credentials=address.credentials)
    try:
        fleet = Fleet()
        await bus.serve(FLEET_ALL, fleet.receive)
        await bus.publish(HEARTBEAT_REQUEST_ALL, HeartbeatRequest(ROLES))
        yield bus, fleet
    finally:
        await bus.close()


def add_bus_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    add_bus_location(parser)


def add_bus_location(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nats-url",
        default="",
        metavar="URL",
        help=f"the bus (default: what {URL_VARIABLE} or stack.json says)",
    )
    add_state_dir(parser)


def run_on_bus(args: argparse.Namespace, name: str, body: Callable[[BusAddress], Awaitable[int]]) -> int:
    """The exit code of `body`, which gets the address of the bus; a typed error is a sentence and 1."""
    logging.configure("error", "cli", "cli")

    async def run() -> int:
        return await body(_bus_address(args))

    try:
        return run_loop(run())
    except PenstockError as error:
        print(f"penstock {name}: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, InvalidRequest) else EXIT_FAILED


def _bus_address(args: argparse.Namespace) -> BusAddress:
    """Return the address that the user passed, else the environment's, else that of stack.json."""
    if url := args.nats_url or os.environ.get(URL_VARIABLE, ""):
        return BusAddress(url, load_credentials(os.environ.get(CREDENTIALS_VARIABLE, "")))
    state_dir = chosen_state_dir(args, NATS_URL_OPTION)
    url = stack_address(state_dir, "nats", NATS_URL_OPTION)
    credentials = load_credentials(stack_credentials(state_dir, NATS_URL_OPTION))
    return BusAddress(url, credentials, stack_names(state_dir, NATS_URL_OPTION), state_dir)
