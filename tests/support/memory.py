"""Memory of this process as the kernel counts it."""

from __future__ import annotations

import ctypes
import mmap


def resident_bytes(address: int, nbytes: int) -> int:
    """The pages that [address, address + nbytes) touches and that take memory, by mincore(2)."""
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    count = -(-(address + nbytes - first) // mmap.PAGESIZE)
    resident = (ctypes.c_ubyte * count)()
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    assert mincore(ctypes.c_void_p(first), ctypes.c_size_t(count * mmap.PAGESIZE), resident) == 0
    return sum(page & 1 for page in resident) * mmap.PAGESIZE
