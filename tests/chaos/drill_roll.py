"""Roll: every instance of a stack is started anew under load, and no request fails or changes.

While `penstock roll` goes through the roles, clients stream on kept connections and connect anew over gRPC
and HTTP, and the heartbeats are watched: of no role are there fewer that are ready than there were.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from services.cli.fleet.stack_roll import ROLL_ORDER
from shared.bus import Delivery
from shared.bus.subjects import FLEET_ALL
from shared.messages import Heartbeat
from tests.chaos.report import DrillReport, spread
from tests.chaos.steady_load import steady_load
from tests.chaos.traffic import Stream
from tests.chaos.world import Models, drill_stack, until_serving
from tests.support.data import REPOSITORY
from tests.support.ended_program import ended_program
from tests.support.stack import Stack

ROLL_TIMEOUT_S = 540.0
ROOM = {"PENSTOCK_DECODE_MAX_SEQUENCES": "64"}


@dataclass(frozen=True, slots=True)
class Scale:
    streams: int
    tokens: int
    anew: int
    rolls: tuple[tuple[str, ...], ...]
    """The roles of each roll, in turn; none is all of them."""


FULL = Scale(12, 400, 3, ((), ()))
SHORT = Scale(1, 40, 1, (("gateway",),))


async def told(stack: Stack, command: str, *arguments: str, root: Path = REPOSITORY) -> tuple[int, str]:
    """The exit code and the words of a command of `penstock`, by the code in `root`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", command, *arguments, "--state-dir", str(stack.state_dir)),
        cwd=root,
        env=stack.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    ended = await ended_program(process, limit_s=ROLL_TIMEOUT_S)
    return ended.code, ended.out


@asynccontextmanager
async def fewest_ready(stack: Stack) -> AsyncIterator[dict[str, int]]:
    """For each role the fewest of its instances that were ready at one time, by their heartbeats."""
    states: dict[tuple[str, str], str] = {}
    fewest: dict[str, int] = {}

    def heard(delivery: Delivery) -> None:
        beat = delivery.message
        if isinstance(beat, Heartbeat):
            states[beat.role, beat.instance] = beat.state
            ready = Counter(role for (role, _), state in states.items() if state == "ready")
            if fewest or all(ready[role] >= number for role, number in stack_has.items()):  # all are heard
                for role, number in stack_has.items():
                    fewest[role] = min(fewest.get(role, number), ready[role])

    stack_has = Counter(instance.role for instance in stack.instances())
    bus = await stack.connect("drill-roll")
    try:
        await bus.serve(FLEET_ALL, heard)
        yield fewest
    finally:
        await bus.close()


def new_report() -> DrillReport:
    return DrillReport(
        "roll: every instance is started anew under load",
        ("rolled", "took", "answers", "failed or changed", "longest pause p50 / p99 / max"),
    )


async def hold_on(
    stack: Stack, scale: Scale, report: DrillReport, root: Path = REPOSITORY
) -> list[list[Stream]]:
    """Roll to the code in `root`, and return what the streams answered before each roll."""
    return [await _roll_once(stack, scale, roles, report, root) for roles in scale.rolls]


async def _roll_once(
    stack: Stack, scale: Scale, roles: Sequence[str], report: DrillReport, root: Path
) -> list[Stream]:
    what = " and ".join(roles) or "all roles"
    before = {each.id: each.pid for each in stack.instances() if not roles or each.role in roles}
    has = Counter(each.role for each in stack.instances())
    async with (
        steady_load(stack, scale.streams, scale.tokens, scale.anew) as load,
        fewest_ready(stack) as fewest,
    ):
        begun_s = time.monotonic()
        code, said = await told(stack, "roll", *roles, root=root)
        took_s = time.monotonic() - begun_s
    pauses = spread([1e3 * pause_s for pause_s in load.pauses_s])
    report.add(what, f"{took_s:.0f} s", load.answers, len(load.wrong), pauses)
    report.claim(f"`penstock roll` of {what} ends well", said.splitlines()[-1:], holds=code == 0)
    report.claim("no request fails and none is answered otherwise", load.wrong[:3], holds=not load.wrong)
    after = {each.id: each.pid for each in stack.instances()}
    left = [name for name, pid in before.items() if after.get(name) in (pid, None)]
    report.claim("every instance is another process", left or "none is left", holds=not left)
    report.claim(
        "of no role there are fewer that are ready than before", dict(fewest), holds=dict(fewest) == dict(has)
    )
    report.claim("nobody stands in any more", len(after), holds=len(after) == sum(has.values()))
    await until_serving(stack)
    return load.undisturbed


async def hold(models: Models, scale: Scale = FULL) -> DrillReport:
    report = new_report()
    assert set(ROLL_ORDER) >= {role for roles in scale.rolls for role in roles}
    with drill_stack(models, environ=ROOM) as stack:
        await hold_on(stack, scale, report)
    return report
