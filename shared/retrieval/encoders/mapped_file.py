"""Pages of a mapped checkpoint, given back once what the kernels need of it is packed."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path

MAPS = Path("/proc/self/maps")


def give_back_pages(file: Path) -> None:
    """Give back the pages that this process has of a file that it maps and never writes to.

    Whoever reads on there gets them again, from what the system keeps of files. Does nothing but on Linux.
    """
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for begin, end in _mappings(file):
        madvise(begin, end - begin, mmap.MADV_DONTNEED)


def _mappings(file: Path) -> Iterator[tuple[int, int]]:
    path = str(file.resolve())
    for line in MAPS.read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == path:
            begin, _, end = fields[0].partition("-")
            yield int(begin, 16), int(end, 16)
