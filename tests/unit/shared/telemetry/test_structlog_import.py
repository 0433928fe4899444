"""What the logs bring along, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from tests.support.data import REPOSITORY

PROGRAM = """
import sys
import services.launcher.__main__
assert "structlog" in sys.modules and "rich" not in sys.modules
import rich.console
rich.console.Console()
"""


def test_a_launcher_imports_no_rich_and_leaves_it_to_whoever_wants_it() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=REPOSITORY, timeout=60, check=True)
