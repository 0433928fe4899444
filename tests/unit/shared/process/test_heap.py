"""Memory that loading leaves free, in a process of its own."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from tests.support.data import REPOSITORY

TRIM = """
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


SETTLE = """
import gc
from shared.process.heap import COLLECT_AFTER, settle_heap

loaded = [[] for _ in range(50_000)]
settle_heap()
print(gc.get_freeze_count() >= len(loaded), len(gc.get_objects()) < 5_000)
print(gc.get_threshold() == COLLECT_AFTER)
seen = []
gc.callbacks.append(lambda phase, info: seen.append(info["generation"]) if phase == "stop" else None)
kept = [[] for _ in range(49_000)]  # as many live requests as a gateway may have
print(2 in seen, 1 in seen)
"""


def run(program: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ended.stdout


def test_what_was_loaded_is_not_gone_through_again_and_what_lives_is_seldom() -> None:
    """By Python's own thresholds the last word is `True`."""
    assert run(SETTLE).split() == ["True", "True", "True", "False", "False"]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library")
def test_what_was_loaded_and_is_gone_is_given_back_although_the_heap_goes_on_behind_it() -> None:
    assert int(run(TRIM)) > 20_000
