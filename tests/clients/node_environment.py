"""An environment for programs of Node, kept until what it needs changes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import HOME, INSTALL_TIMEOUT_S, PROGRAMS, run_program
from tests.clients.served import Served

UNREACHED = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "E404", "ENOTCACHED")
"""npm's words for a registry that is not there, or does not have the package."""


class NodeEnvironment:
    """With one package, as `name@version`."""

    def __init__(self, package: str, home: Path = HOME) -> None:
        self._folder = home / f"node-{package}"
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("there is no npm command")
        stamp = self._folder / ".stamp"
        if not stamp.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(self._folder), package]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S
            )
            if done.returncode and any(word in done.stderr for word in UNREACHED):
                pytest.skip(f"no npm registry is at hand: {done.stderr.splitlines()[-1]}")
            assert done.returncode == 0, done.stderr
            stamp.touch()

    async def call(self, script: str, served: Served, what: str) -> Any:
        """What `programs/<script>` answers."""
        arguments = (str(PROGRAMS / script), what, served.url, served.model, served.embedder)
        modules = {"NODE_PATH": str(self._folder / "node_modules")}
        return json.loads(await run_program("node", *arguments, environ=modules))
