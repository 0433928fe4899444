"""A whole stack of our own, started as `penstock up` starts it, and stopped again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.cli.fleet.fleet_watch import BusAddress
from services.cli.launcher_process import ROOT
from services.cli.stack_file import STACK_NAME, stack_address, stack_credentials, stack_names, stack_pids
from shared.bus.credentials import load_credentials
from shared.config.settings import SourceKind
from shared.errors import Unavailable
from shared.text.model_source import DEMO_MODEL

START_DEADLINE_S = 120.0
"""The longest that a stack may take until it is ready."""
STOP_DEADLINE_S = 30.0
"""The longest that a stack may take to end; then its launcher is killed, and its services end with it."""
OTHER_FOLDER = "another TMPDIR"
"""The advice where a folder of ours is not as it should be."""
POLL_S = 0.005
TAIL_BYTES = 4000
"""The last words of a stack that did not start, which are said."""
WORDS_NAME = "words"
"""The file in the stack's folder with all that it says."""
ALWAYS = ("--grpc-port", "0", "--http-port", "0")
"""The options of every one: it is in nobody's way."""
DEMO_OPTIONS = (
    *("--model", str(DEMO_MODEL), "--draft", "none", "--corpus", "none"),
    *("--retriever", "0", "--speculator", "0"),
)
"""The options of the smallest: the demo model, and no role that it can do without."""
CONFIGURING = ("PENSTOCK_", "GRPC_")
"""The beginnings of variables that configure a stack."""
DEFAULT = SourceKind.DEFAULT.value
RoleSettings = dict[str, dict[str, Any]]
"""Settings by role and name."""


@dataclass(frozen=True, slots=True)
class StackPlan:
    """`options` are those of `penstock up`. `tree`: the code that runs. `configured`: the variables and the
    penstock.toml of whoever starts it hold, too. `variables` hold before those."""

    options: Sequence[str]
    tree: Path = ROOT
    configured: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)


DEMO_PLAN = StackPlan(DEMO_OPTIONS, configured=False)


@dataclass(frozen=True, slots=True)
class OwnStack:
    """A stack that is ready. `ready_s`: from the start of its launcher on."""

    state_dir: Path
    ready_s: float

    def address(self, edge: str) -> str:
        """Return HOST:PORT of "grpc" or "http"."""
        return stack_address(self.state_dir, edge, OTHER_FOLDER)

    @property
    def pids(self) -> dict[str, int]:
        """Return the processes of its instances."""
        return stack_pids(self.state_dir, OTHER_FOLDER)

    def bus(self) -> BusAddress:
        credentials = load_credentials(stack_credentials(self.state_dir, OTHER_FOLDER))
        return BusAddress(self.address("nats"), credentials, stack_names(self.state_dir, OTHER_FOLDER))


@contextlib.asynccontextmanager
async def own_stack(plan: StackPlan) -> AsyncIterator[OwnStack]:
    """Start a stack, and stop it at the end. Raises Unavailable with its last words if it does not start."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        began_s = time.perf_counter()
        launcher = await _launch(plan, folder)
        try:
            await _until_ready(launcher, folder)
            yield OwnStack(folder, time.perf_counter() - began_s)
        finally:
            await _stop(launcher)


async def stack_settings(plan: StackPlan) -> RoleSettings | None:
    """Return the settings of a stack that are no defaults, secrets hidden; None where its code tells none."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "services.launcher.config_report", "--json"),
        *plan.options,
        *ALWAYS,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=_environ(plan),
    )
    try:
        async with asyncio.timeout(START_DEADLINE_S):
            told, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return None if process.returncode else changed_settings(json.loads(told))


def changed_settings(report: RoleSettings) -> RoleSettings:
    """Return the values of a report of `penstock config --json` that are no defaults."""
    return {
        role: {name: each["value"] for name, each in settings.items() if each["kind"] != DEFAULT}
        for role, settings in report.items()
    }


async def _launch(plan: StackPlan, folder: Path) -> asyncio.subprocess.Process:
    with (folder / WORDS_NAME).open("wb") as words:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "services.launcher"),
            *plan.options,
            *ALWAYS,
            *("--state-dir", str(folder)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            cwd=None if plan.configured else folder,  # where there is no penstock.toml
            env=_environ(plan),
            start_new_session=True,  # Ctrl-C reaches this process alone, which ends that one
        )


def _environ(plan: StackPlan) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if plan.configured or not name.startswith(CONFIGURING)
    }
    return {**kept, **plan.variables, "PYTHONPATH": str(plan.tree)}


async def _until_ready(launcher: asyncio.subprocess.Process, folder: Path) -> None:
    """Return when the stack has said where it is, which it does when all instances are ready."""
    began_s = time.perf_counter()
    while not (folder / STACK_NAME).exists():
        if launcher.returncode is not None:
            raise Unavailable(f"the stack ended before it was ready:\n{_last_words(folder)}")
        if time.perf_counter() - began_s > START_DEADLINE_S:
            raise Unavailable(f"the stack is not ready after {START_DEADLINE_S:g} s:\n{_last_words(folder)}")
        await asyncio.sleep(POLL_S)


def _last_words(folder: Path) -> str:
    with (folder / WORDS_NAME).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read().decode(errors="replace").strip()


async def _stop(launcher: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        launcher.terminate()
    try:
        async with asyncio.timeout(STOP_DEADLINE_S):
            await launcher.wait()
    except (TimeoutError, asyncio.CancelledError) as error:
        with contextlib.suppress(ProcessLookupError):
            launcher.kill()
        await launcher.wait()
        if isinstance(error, asyncio.CancelledError):
            raise
