"""Versions: two versions of the code serve in one fleet, and the fleet is upgraded under load.

A stack of an earlier commit is rolled by this code in two halves, and one of this code by a later one, whose
messages have more fields. In between, half of the roles are of either version: once those that are asked are
the newer ones, and on a second stack those that ask. Code whose messages mean something else is refused.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from services.launcher.state import credentials_file
from shared.bus.wire_schema import schema_breaks, wire_schema
from shared.files.roll_file import stand_in_name
from shared.messages import MEANING_VERSION
from tests.chaos.code_variants import (
    NEXT_MEANING,
    code_of,
    code_of_another_meaning,
    code_with_more_fields,
    git,
    git_bytes,
)
from tests.chaos.drill_roll import ROOM, Scale, hold_on, new_report, told
from tests.chaos.report import DrillReport
from tests.chaos.steady_load import steady_load
from tests.chaos.traffic import differences
from tests.chaos.world import Models, drill_stack
from tests.support.data import REPOSITORY
from tests.support.stack import Stack
from tests.support.wait import until

BEFORE_VARIABLE = "PENSTOCK_BEFORE"
"""Names the earlier commit; else it is the last tag, or the oldest commit that can be upgraded to this."""
RECORD = "shared/messages/wire.json"
FOLLOWER = "services/launcher/roll_follower.py"
ASKED = ("tokenizer", "retriever", "detokenizer", "speculator", "decode")
ASKING = ("prefill", "gateway")
ORDERS = ((ASKED, ASKING), (ASKING, ASKED))
REFUSED_TIMEOUT_S = 60.0


def incompatible(commit: str) -> str:
    """Why a fleet of this commit cannot be upgraded instance by instance; "" for nothing."""
    if not git("ls-tree", "--name-only", commit, RECORD, FOLLOWER).count("\n"):
        return "its launcher cannot be rolled"
    before, now = _record_of(commit), wire_schema()
    if before["meaning"] != now["meaning"]:
        return f"its messages have version {before['meaning']}, and ours {now['meaning']}"
    return "; ".join(schema_breaks(before, now))


def _record_of(commit: str) -> dict[str, object]:
    record: dict[str, object] = json.loads(git_bytes("show", f"{commit}:{RECORD}"))
    return record


def earlier_commit() -> str:
    """The commit that is named, else the last tag, else the oldest: that can be upgraded to this one."""
    if named := os.environ.get(BEFORE_VARIABLE, ""):
        if why := incompatible(named):
            raise AssertionError(f"{named} cannot be upgraded to this code: {why}")
        return named
    tags = git("tag", "--merged", "HEAD", "--sort=-creatordate").split()[:1]
    oldest = git("log", "--reverse", "--format=%h", "--", RECORD, FOLLOWER).split()
    return next(commit for commit in [*tags, *oldest] if not incompatible(commit))


async def hold(models: Models) -> DrillReport:
    commit = earlier_commit()
    report = new_report()
    news = len(json.dumps(wire_schema())) - len(json.dumps(_record_of(commit)))
    report.title = (
        f"versions: {git('log', '-1', '--format=%h (%cs)', commit)}, whose record of the wire is {news} "
        "characters shorter, is upgraded to this code under load, and this code to one with more fields"
    )
    with code_of(commit) as root:
        await _upgrade(models, root, REPOSITORY, report)
    with code_with_more_fields() as later:
        await _upgrade(models, REPOSITORY, later, report)
    with code_of_another_meaning() as other:
        await _refuse(models, other, report)
    return report


async def _upgrade(models: Models, before: Path, after: Path, report: DrillReport) -> None:
    for rolls in ORDERS:
        with drill_stack(models, environ=ROOM, root=before) as stack:
            old, mixed = await hold_on(stack, Scale(8, 300, 2, rolls), report, after)
        wrong = differences(mixed, old)
        report.claim("a fleet of two versions answers as one of the earlier", wrong[:3], holds=not wrong)


async def _refuse(models: Models, other: Path, report: DrillReport) -> None:
    """Its roll is refused, and so is a worker that comes by itself: both by name, with both versions."""
    with drill_stack(models, environ=ROOM) as stack:
        pids = [each.pid for each in stack.instances()]
        async with steady_load(stack, 4, 200, 1) as load:
            code, said = await told(stack, "roll", root=other)
            words = _of_versions([said])
            report.claim(
                "a roll to another meaning is refused by name", words, holds=code == 1 and bool(words)
            )
            heard = await _come_by_itself(stack, other)
            report.claim("so is a worker of it, by those that hear it", heard[:1], holds=bool(heard))
        report.add("a break", "", load.answers, len(load.wrong), "")
        report.claim("nobody is disturbed", load.wrong[:3], holds=not load.wrong)
        report.claim(
            "every instance is the same process",
            len(pids),
            holds=[each.pid for each in stack.instances()] == pids,
        )


async def _come_by_itself(stack: Stack, root: Path) -> list[str]:
    """Return the lines of the stack about a detokenizer of other code that comes to its bus."""
    role = "detokenizer"
    name = stand_in_name(role, len(stack.instances(role)))
    like = await asyncio.to_thread(_environ_of, stack.instances(role)[0].pid)
    environ = {
        **like,
        "PENSTOCK_INSTANCE": name,
        "PENSTOCK_NATS_CREDENTIALS": str(credentials_file(stack.state_dir, name)),
        "PYTHONPATH": str(root),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"services.{role}"), cwd=root, env=environ, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await until(lambda: _of_versions(stack.log, name), timeout_s=REFUSED_TIMEOUT_S)
    finally:
        process.kill()
        await process.wait()
    return _of_versions(stack.log, name)


def _environ_of(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def _of_versions(lines: Sequence[str], sender: str = "") -> list[str]:
    """The lines that name both versions, and a sender."""
    return [
        line.strip()
        for line in lines
        if f"version {MEANING_VERSION}" in line and f"version {NEXT_MEANING}" in line and sender in line
    ]
