"""Pages of files that a process has mapped: given back once what is wanted of them now has been read.

They stay in the system's cache of files, which is the first to go where memory is short, and whoever reads on
gets them again: 16 at a time, in a microsecond or two. Nothing here does anything but on Linux.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable
from pathlib import Path

MAPS = Path("/proc/self/maps")
SIZES = Path("/proc/self/smaps")
_READ_ONLY, _RUN = (b"r--p", b"r-xp"), b"r-xp"
_OF_NO_FILE = (b"Anonymous:", b"Swap:")
_READ_BYTES = 4096


def give_back_pages(file: Path) -> None:
    """Give back the pages that this process has of a file that it maps and never writes to."""
    if sys.platform == "linux":
        path = os.fsencode(file.resolve())
        with MAPS.open("rb") as lines:
            _give_back(place for place, _, its in map(_mapping, lines) if its == path)


def give_back_program_pages() -> None:
    """Give back what this process has of its program and its libraries: most of it is what was read once, as
    they were loaded. What follows gets what it needs again, a tenth of it."""
    if sys.platform == "linux":
        with SIZES.open("rb", buffering=_READ_BYTES) as lines:  # a line at a time: it is a megabyte
            _give_back(_unwritten_programs(lines))


def _give_back(places: Iterable[bytes]) -> None:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for place in places:
        begin, _, end = place.partition(b"-")
        madvise(int(begin, 16), int(end, 16) - int(begin, 16), mmap.MADV_DONTNEED)


def _mapping(line: bytes) -> tuple[bytes, bytes, bytes]:
    """Return where it is, what is allowed there, and of which file it is, "" for none."""
    place, may, _, _, _, *path = line.split(maxsplit=5)
    return place, may, path[0].rstrip(b"\n") if path else b""


def _unwritten_programs(sizes: Iterable[bytes]) -> list[bytes]:
    """Return the places of programs that nobody may write to, and nobody has: what the dynamic linker writes
    before it forbids that is of no file any more, and would be lost."""
    programs, unwritten = set[bytes](), dict[bytes, bytes]()
    place = b""
    for line in sizes:
        if not line[:1].isupper():  # all but the lines of a mapping's sizes begin with its address
            place, may, path = _mapping(line)
            if may in _READ_ONLY and path.startswith(b"/"):
                unwritten[place] = path
            if may == _RUN:
                programs.add(path)
        elif line.startswith(_OF_NO_FILE) and line.split()[1] != b"0":
            unwritten.pop(place, None)
    return [place for place, path in unwritten.items() if path in programs]
