"""What the bus brings along, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from tests.support.data import REPOSITORY

PROGRAM = """
import sys
import shared.bus.bulk
assert "nats" in sys.modules and "aiohttp" not in sys.modules
import aiohttp
aiohttp.ClientTimeout()
"""


def test_the_bus_imports_no_aiohttp_and_leaves_it_to_whoever_wants_it() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=REPOSITORY, timeout=60, check=True)
