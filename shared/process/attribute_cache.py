"""CPython's cache of looked up attributes, emptied of names before a heap is shared with forked processes.

Each of its places holds the name that was looked up last there: names that lie all over the heap. A forked
process that looks up others lets go of those, one after the other, and each time copies the page that the
name stands on.
"""

from __future__ import annotations

import sys

# The place in the cache is chosen by the address of the name and by the class: these come to all 4,096.
_NAMES, _KINDS = 512, 64

_kept: list[str] = []


def fill_attribute_cache() -> None:
    """Have the cache hold names that stand together and that nobody else has; it takes some 10 ms."""
    if sys.implementation.name != "cpython":
        return
    _kept[:] = [f"{number:20}" for number in range(_NAMES)]
    for _ in range(_KINDS):
        one = type("_Nothing", (), {})()
        for name in _kept:
            getattr(one, name, None)
