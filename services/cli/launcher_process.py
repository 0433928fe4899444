"""Commands that are the launcher's: this process becomes the program that has the options."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]


def become(module: str, argv: Sequence[str]) -> NoReturn:
    """Replaces this process, so that signals reach the program itself."""
    command = launcher_command(module)
    sys.stdout.flush()
    os.execv(command[0], [*command, *argv])  # noqa: S606 (no shell)


def launcher_command(module: str = "services.launcher") -> list[str]:
    # -P and the path: a folder named "services" in the current directory must not shadow ours.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return [sys.executable, "-P", "-m", module]
