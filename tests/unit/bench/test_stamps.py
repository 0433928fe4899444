"""The notes of a request's way are on disk when the processes that made them have ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.data import REPOSITORY

TIMEOUT_S = 60
PROGRAM = """
from shared.process.quiet_end import end_quietly

def run():
    from shared.bus import codec
    from shared.messages import Text
    from shared.messages.envelope import Envelope
    codec.encode(Text((), (), (), (), (), (), (), ()), Envelope("r", 1))
    return 0

raise SystemExit(end_quietly(run))
"""


def test_a_program_that_ends_as_services_do_leaves_its_notes(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "PENSTOCK_STAMPS": str(tmp_path),
        "PYTHONPATH": f"{REPOSITORY / 'tests/bench/stamps'}:{REPOSITORY}",
    }
    subprocess.run([sys.executable, "-c", PROGRAM], env=environ, check=True, timeout=TIMEOUT_S)
    (noted,) = tmp_path.glob("*.txt")
    assert noted.read_text().split()[1:] == ["encode", "Text"]
