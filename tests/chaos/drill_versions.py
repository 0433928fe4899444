"""Versions: an earlier commit and this one serve in one fleet, and the fleet is upgraded under load.

A stack of the earlier commit is rolled by this code in two halves. In between, half of the roles are of
either version: once those that are asked are the newer ones, and on a second stack those that ask.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.bus.wire_schema import schema_breaks, wire_schema
from tests.chaos.drill_roll import ROOM, Scale, hold_on, new_report
from tests.chaos.report import DrillReport
from tests.chaos.traffic import differences
from tests.chaos.world import Models, drill_stack
from tests.support.data import REPOSITORY

BEFORE_VARIABLE = "PENSTOCK_BEFORE"
"""Names the earlier commit; else it is the last tag, or the oldest commit that can be upgraded to this."""
RECORD = "shared/messages/wire.json"
FOLLOWER = "services/launcher/roll_follower.py"
KERNELS = "shared/engine/native"
ASKED = ("tokenizer", "retriever", "detokenizer", "speculator", "decode")
ASKING = ("prefill", "gateway")
ORDERS = ((ASKED, ASKING), (ASKING, ASKED))


def git(*arguments: str) -> str:
    return git_bytes(*arguments).decode().strip()


def git_bytes(*arguments: str) -> bytes:
    command = ("git", "-C", str(REPOSITORY), *arguments)
    return subprocess.run(command, check=True, capture_output=True).stdout


def incompatible(commit: str) -> str:
    """Why a fleet of this commit cannot be upgraded instance by instance; "" for nothing."""
    if not git("ls-tree", "--name-only", commit, RECORD, FOLLOWER).count("\n"):
        return "its launcher cannot be rolled"
    before, now = json.loads(git_bytes("show", f"{commit}:{RECORD}")), wire_schema()
    if before["meaning"] != now["meaning"]:
        return f"its messages have version {before['meaning']}, and ours {now['meaning']}"
    return "; ".join(schema_breaks(before, now))


def earlier_commit() -> str:
    """The commit that is named, else the last tag, else the oldest: that can be upgraded to this one."""
    if named := os.environ.get(BEFORE_VARIABLE, ""):
        if why := incompatible(named):
            raise AssertionError(f"{named} cannot be upgraded to this code: {why}")
        return named
    tags = git("tag", "--merged", "HEAD", "--sort=-creatordate").split()[:1]
    oldest = git("log", "--reverse", "--format=%h", "--", RECORD, FOLLOWER).split()
    return next(commit for commit in [*tags, *oldest] if not incompatible(commit))


@contextmanager
def code_of(commit: str) -> Iterator[Path]:
    """A folder with the code of a commit, and our compiled kernels, which have to be its own."""
    if git("diff", "--name-only", commit, "--", f"{KERNELS}/*.cpp", f"{KERNELS}/*.h"):
        raise AssertionError(f"the kernels of {commit} are others: name a later commit in {BEFORE_VARIABLE}")
    with tempfile.TemporaryDirectory(prefix="penstock-before-") as folder:
        with tarfile.open(fileobj=io.BytesIO(git_bytes("archive", commit))) as archive:
            archive.extractall(folder, filter="data")
        for library in (REPOSITORY / KERNELS).glob("*.so"):
            shutil.copy2(library, Path(folder) / KERNELS)
        yield Path(folder)


async def hold(models: Models) -> DrillReport:
    commit = earlier_commit()
    report = new_report()
    report.title = (
        f"versions: {git('log', '-1', '--format=%h (%cs)', commit)} is upgraded to this code under load"
    )
    with code_of(commit) as root:
        for rolls in ORDERS:
            with drill_stack(models, environ=ROOM, root=root) as stack:
                old, mixed = await hold_on(stack, Scale(8, 300, 2, rolls), report)
            wrong = differences(mixed, old)
            report.claim("a fleet of two versions answers as one of the earlier", wrong[:3], holds=not wrong)
    return report
