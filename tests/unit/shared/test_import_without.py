"""What libraries bring along, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.data import REPOSITORY

BUS = """
import sys
import shared.bus.bulk
assert "nats" in sys.modules and "aiohttp" not in sys.modules
import aiohttp
aiohttp.ClientTimeout()
"""
LAUNCHER = """
import sys
import services.launcher.__main__
assert "structlog" in sys.modules and "rich" not in sys.modules
import rich.console
rich.console.Console()
"""


@pytest.mark.parametrize("program", [BUS, LAUNCHER], ids=["the bus no aiohttp", "a launcher no rich"])
def test_it_is_left_out_and_left_to_whoever_wants_it(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, timeout=60, check=True)
