"""Fill the holes that imports leave in a heap, before it is shared with processes that are forked off.

What such a process allocates would stand in these, one object on a page and another one on the next, and each
of them makes the process copy a page that it shares: 8 MB in every service of a stack. Where there are no
holes it stands together, on pages of its own.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Mapping

_CLASS = re.compile(r"^\s*\d+\s+(\d+)\s+\d+\s+\d+\s+(\d+)\s*$", re.MULTILINE)
"""A line of `sys._debugmallocstats`: a class, its size, pools, blocks in use and blocks that are free."""
_ABOVE_HOLES_BYTES = 120_000
"""A block that hardly any hole has room for: glibc maps blocks from 128 KiB on by themselves."""
_SIZES_BYTES = (*(1 << power for power in range(16, 9, -1)), *range(504, 16, -16))
"""The sizes that holes of the C library are filled with, largest first, for only the heads of blocks are
written to."""
_BLOCKS_OF_A_SIZE = 50_000
"""The most blocks of one size: the walk ends whatever a C library does."""


def fill_heap_holes() -> None:
    """Allocate all that is free between objects, for good; nothing is done without CPython's own allocator
    and glibc. To be called where there is one thread.
    """
    if sys.platform != "linux":
        return
    allocate = ctypes.pythonapi.PyObject_Malloc
    allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    for size, free in free_blocks().items():
        for _ in range(free):
            allocate(size)
    if hasattr(ctypes.CDLL(None), "malloc_trim"):
        _fill_holes_of_glibc()


def free_blocks() -> Mapping[int, int]:
    """Count the free blocks of each size between the objects of this process, as CPython tells it: on
    standard error, which is a file meanwhile."""
    with open(os.memfd_create("malloc-stats"), "w+") as told:
        kept = os.dup(2)
        os.dup2(told.fileno(), 2)
        try:
            sys._debugmallocstats()  # noqa: SLF001 - there is no other way to ask
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        told.seek(0)
        return {int(size): int(free) for size, free in _CLASS.findall(told.read())}


def _fill_holes_of_glibc() -> None:
    """A block that comes from above all others shows that no hole has room for one of its size."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    above = libc.malloc(_ABOVE_HOLES_BYTES)
    libc.free(above)
    for size in _SIZES_BYTES:
        for _ in range(_BLOCKS_OF_A_SIZE):
            block = libc.malloc(size)
            if block is None or block >= above:
                break
