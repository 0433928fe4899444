"""The heap of a process: what loading has left in it goes back to the system, or is not looked at again."""

from __future__ import annotations

import ctypes
import gc
import sys

COLLECT_AFTER = (5_000, 10, 5)
"""Collect garbage after so many objects more than before, the middle-aged every so many times, and all of it
every so many of those: what only a collection frees is a quarter of a million objects at most, about 30 MB.

By Python's own (700, 10, 10) a gateway with 250 live requests went through all that it holds every five
seconds, and no stream moved for 60 to 120 ms meanwhile: the slowest first tokens waited for that."""


def trim_heap() -> None:
    """Give back the pages on which nothing is any more; without glibc only what is in cycles is freed.

    By itself glibc gives back the end of its heap alone. Reading a vocabulary of 32,000 tokens leaves 20 MB
    behind, in each process that does.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def settle_heap() -> None:
    """Everything is loaded and stays: trim the heap, and let collections look at what comes from here on."""
    trim_heap()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
