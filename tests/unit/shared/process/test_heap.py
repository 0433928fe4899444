"""Memory that loading leaves free, in a process of its own."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from tests.support.data import REPOSITORY

PROGRAM = """
from pathlib import Path
from shared.process.heap import trim_heap

def anonymous_kb():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))

class Loaded:
    def __init__(self):
        self.parts = [bytes(1000) for _ in range(30_000)]
        self.cycle = self

loaded = Loaded()
kept = bytes(1000)  # the end of the heap is in use
del loaded
before = anonymous_kb()
trim_heap()
print(before - anonymous_kb())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library")
def test_what_was_loaded_and_is_gone_is_given_back_although_the_heap_goes_on_behind_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert int(ended.stdout) > 20_000
