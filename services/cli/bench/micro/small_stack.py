"""A whole stack of the demo model, started as `penstock up` starts it, and stopped again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from services.cli.fleet.fleet_watch import BusAddress
from services.cli.launcher_process import launcher_command
from services.cli.stack_file import STACK_NAME, stack_address, stack_credentials, stack_instances, stack_pids
from shared.bus.credentials import load_credentials
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
OPTIONS = (
    *("--model", str(DEMO_MODEL), "--draft", "none", "--corpus", "none"),
    *("--retriever", "0", "--speculator", "0", "--grpc-port", "0", "--http-port", "0"),
)
LEFT_OUT = ("PENSTOCK_", "GRPC_")
"""The beginnings of variables that configure a stack: those of the user and of this process are left out."""


@dataclass(frozen=True, slots=True)
class SmallStack:
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
        return BusAddress(self.address("nats"), credentials, stack_instances(self.state_dir, OTHER_FOLDER))


@contextlib.asynccontextmanager
async def small_stack() -> AsyncIterator[SmallStack]:
    """Start a stack, and stop it at the end. Raises Unavailable with its last words if it does not start."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        began_s = time.perf_counter()
        launcher = await _launch(folder)
        try:
            await _until_ready(launcher, folder)
            yield SmallStack(folder, time.perf_counter() - began_s)
        finally:
            await _stop(launcher)


async def _launch(folder: Path) -> asyncio.subprocess.Process:
    with (folder / WORDS_NAME).open("wb") as words:
        return await asyncio.create_subprocess_exec(
            *launcher_command(),
            *OPTIONS,
            "--state-dir",
            str(folder),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            cwd=folder,  # there is no penstock.toml
            env={name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)},
            start_new_session=True,  # Ctrl-C reaches this process alone, which ends that one
        )


async def _until_ready(launcher: asyncio.subprocess.Process, folder: Path) -> None:
    """Return when the stack has said where it is, which it does when all instances are ready."""
    began_s = time.perf_counter()
    while not (folder / STACK_NAME).exists():
        if launcher.returncode is not None:
            raise Unavailable(f"the small stack ended before it was ready:\n{_last_words(folder)}")
        if time.perf_counter() - began_s > START_DEADLINE_S:
            raise Unavailable(
                f"the small stack is not ready after {START_DEADLINE_S:g} s:\n{_last_words(folder)}"
            )
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
