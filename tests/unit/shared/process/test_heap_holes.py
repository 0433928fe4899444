"""Holes that are filled before a fork, in a process of its own: the fork's objects stand together."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from tests.support.data import REPOSITORY

FORK = """
import os
import sys
from pathlib import Path
from shared.process.heap_holes import fill_heap_holes

OBJECTS, BYTES = 20_000, 150  # pages of 4 KiB have room for 25 of them

def private_kb():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))

imported = [bytes(BYTES) for _ in range(20 * OBJECTS)]
del imported[::20]  # a hole here and there, as imports leave them
if sys.argv[1] == "filled":
    fill_heap_holes()
pid = os.fork()
if pid == 0:
    before = private_kb()
    kept = [bytes(BYTES) for _ in range(OBJECTS)]
    print(private_kb() - before, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


def copied_kb(how: str) -> int:
    ended = subprocess.run(
        [sys.executable, "-c", FORK, how],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert not ended.stderr, "what CPython tells of its heap is for no log"
    return int(ended.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library")
def test_what_a_fork_allocates_stands_together_where_holes_were_filled() -> None:
    scattered, together = copied_kb("as it is"), copied_kb("filled")
    assert together < 6_000, "20,000 objects of 192 bytes are 3.8 MB"
    assert scattered > 2 * together
