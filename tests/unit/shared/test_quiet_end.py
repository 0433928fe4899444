"""A program that Ctrl-C meets in a moment when nothing can be cleaned up."""

from __future__ import annotations

import subprocess
import sys

from tests.support.data import REPOSITORY

INTERRUPTED_AS_ITS_LOOP_IS_MADE = """
import asyncio.base_events, os, signal
from shared.quiet_end import end_quietly, run_loop

make = asyncio.base_events.BaseEventLoop.__init__

def interrupted(self):
    make(self)
    os.kill(os.getpid(), signal.SIGINT)

asyncio.base_events.BaseEventLoop.__init__ = interrupted

async def body():
    return 7

raise SystemExit(end_quietly(lambda: run_loop(body())))
"""


def test_ctrl_c_while_a_loop_is_made_is_quiet() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AS_ITS_LOOP_IS_MADE],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
