"""Tell the C library's heap how to treat large blocks while a checkpoint is read."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
_WHILE_LOADING_BYTES = 1 << 20
_AFTERWARDS_BYTES = 32 << 20  # where glibc's own threshold ends up once blocks of that size were freed


@contextmanager
def large_blocks_given_back() -> Iterator[None]:
    """Memory of a tensor goes back to the system as soon as the tensor is dropped.

    glibc otherwise learns from the first layers to keep blocks of their size, and the peak of a process
    that repacks a checkpoint grows by all that was temporary. Afterwards large blocks are kept again: a
    forward pass that maps and unmaps its activations pays for every page. Nothing is done without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        yield
        return
    mallopt(_M_MMAP_THRESHOLD, _WHILE_LOADING_BYTES)
    try:
        yield
    finally:
        mallopt(_M_MMAP_THRESHOLD, _AFTERWARDS_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * _AFTERWARDS_BYTES)
