"""Pages of files that a process has mapped: given back once what is wanted of them now has been read.

They stay in the system's cache of files, which is the first to go where memory is short, and whoever reads on
gets them again: 16 at a time, in a microsecond or two. Nothing here does anything but on Linux.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

MAPS = Path("/proc/self/maps")
SIZES = Path("/proc/self/smaps")
READ_ONLY = ("r--p", "r-xp")
_HEAD = re.compile(r"^(?P<begin>[0-9a-f]+)-(?P<end>[0-9a-f]+) (?P<may>\S{4})(?: \S+){3} *(?P<path>.*)$", re.M)
_OF_NO_FILE = re.compile(r"^(?:Anonymous|Swap): +(\d+) kB$", re.M)


class _Mapping(NamedTuple):
    """A part of memory: `may` says what is allowed there, as `r-xp`; `path` is "" for memory of no file."""

    begin: int
    end: int
    may: str
    path: str


def give_back_pages(file: Path) -> None:
    """Give back the pages that this process has of a file that it maps and never writes to."""
    if sys.platform == "linux":
        path = str(file.resolve())
        _give_back(each for each, _ in _mappings(MAPS.read_text()) if each.path == path)


def give_back_program_pages() -> None:
    """Give back what this process has of its program and its libraries: most of it is what was read once, as
    they were loaded. What follows gets what it needs again, a tenth of it."""
    if sys.platform == "linux":
        mapped = list(_mappings(SIZES.read_text()))
        programs = {each.path for each, _ in mapped if each.may == "r-xp" and each.path.startswith("/")}
        _give_back(
            each
            for each, written in mapped
            if each.path in programs and each.may in READ_ONLY and not written
        )


def _give_back(mappings: Iterable[_Mapping]) -> None:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for each in mappings:
        madvise(each.begin, each.end - each.begin, mmap.MADV_DONTNEED)


def _mappings(told: str) -> Iterator[tuple[_Mapping, bool]]:
    """Return what is mapped, and whether it was written to since, as a dynamic linker does before it forbids
    that: such pages are of no file any more. Only `smaps` tells."""
    heads = list(_HEAD.finditer(told))
    ends = [each.start() for each in heads[1:]] + [len(told)]
    for head, end in zip(heads, ends, strict=True):
        sizes = _OF_NO_FILE.findall(told, head.end(), end)
        yield (
            _Mapping(int(head["begin"], 16), int(head["end"], 16), head["may"], head["path"]),
            any(size != "0" for size in sizes),
        )
