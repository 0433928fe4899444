"""`penstock up`: becomes the launcher, which has the options."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(argv: Sequence[str]) -> int:
    """Replaces this process, so that signals reach the launcher itself."""
    command = launcher_command()
    sys.stdout.flush()
    os.execv(command[0], [*command, *argv])  # noqa: S606 (no shell)


def launcher_command() -> list[str]:
    # -P and the path: a folder named "services" in the current directory must not shadow ours.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return [sys.executable, "-P", "-m", "services.launcher"]
