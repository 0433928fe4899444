"""Environments for other people's programs: each with its own packages, kept until what it needs changes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.clients.served import Served
from tests.support.data import REPOSITORY

HOME = REPOSITORY / ".venv-clients"
REQUIREMENTS = Path(__file__).parent / "requirements"
PROGRAMS = Path(__file__).parent / "programs"
INSTALL_TIMEOUT_S = 1200
RUN_TIMEOUT_S = 100
UNREACHED = "(from versions: none)"
"""The words that pip has for a package that no index knows, be it for want of an index."""


class ClientEnvironment:
    """With what `requirements/<name>.txt` lists; `folder` is where its programs are."""

    def __init__(self, name: str, home: Path = HOME) -> None:
        requirements = REQUIREMENTS / f"{name}.txt"
        digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
        self.name = name
        self.folder = home / f"{name}-{digest}" / "bin"
        stamp = self.folder.parent / ".stamp"
        if not stamp.exists():
            make_environment(self.folder.parent, requirements)
            stamp.touch()

    async def call(self, script: str, served: Served, what: str) -> Any:
        """What `programs/<script>` answers, with this environment's Python."""
        told = (str(PROGRAMS / script), what, served.url, served.model, served.embedder)
        return json.loads(await self.run("python", *told))

    async def run(self, program: str, *arguments: str, cwd: Path = REPOSITORY) -> str:
        return await run_program(str(self.folder / program), *arguments, cwd=cwd)


async def run_program(
    program: str, *arguments: str, cwd: Path = REPOSITORY, environ: Mapping[str, str] | None = None
) -> str:
    """Its standard output. Whatever it started ends with it."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        cwd=cwd,
        env={**own, **(environ or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(RUN_TIMEOUT_S):
            output, errors = await process.communicate()
    finally:
        _end_group(process.pid)
        await process.wait()
    assert process.returncode == 0, (output + errors).decode()[-4000:]
    return output.decode()


def make_environment(folder: Path, requirements: Path) -> None:
    """Skips the test where no index is at hand; what does not go together is an error.

    TORCH_INDEX or WHEELS (a folder) may say where torch comes from, as when the images are built.
    """
    _check([sys.executable, "-m", "venv", "--clear", str(folder)])
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    if wheels := os.environ.get("WHEELS"):
        install += ["--find-links", wheels]
    torch = re.search(r"^torch==.*$", requirements.read_text(), re.MULTILINE)
    if torch and (index := os.environ.get("TORCH_INDEX")):
        _check([*install, "--index-url", index, torch[0]])
    _check([*install, "--requirement", str(requirements)])


def _check(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S)
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    if done.returncode and UNREACHED in done.stderr:
        pytest.skip(f"no package index is at hand: {errors[-1]}")
    assert done.returncode == 0, done.stderr[-4000:]


def _end_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return
