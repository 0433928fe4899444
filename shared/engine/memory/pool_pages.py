"""Give pages of a KV pool back to the system."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
_NEVER = ("[never]", "[deny]")


def shared_page_bytes(settings: Path = LARGE_PAGES) -> int:
    """Return what memory that processes can share comes in: large pages where the system has them for it.

    Only whole pages are given back: of a large one that is cut the system gets no part until it is short of
    memory, and may then as well have made it whole again.
    """
    try:
        if any(never in (settings / "shmem_enabled").read_text() for never in _NEVER):
            return mmap.PAGESIZE
        return int((settings / "hpage_pmd_size").read_text())
    except (OSError, ValueError):  # a kernel without large pages
        return mmap.PAGESIZE


class PoolPages:
    """The pages of a pool of `num_blocks` blocks in `num_rows` rows of cells of `cell_bytes`, one behind the
    other from `address` on, in a mapping that is shared or could be.

    A page that holds parts of several blocks is given back once all of these are unused.
    """

    def __init__(
        self, address: int, num_rows: int, num_blocks: int, cell_bytes: int, page_bytes: int = mmap.PAGESIZE
    ) -> None:
        self._address = address
        self._num_rows = num_rows
        self._num_blocks = num_blocks
        self._cell_bytes = cell_bytes
        self._page_bytes = page_bytes
        self._end = address + num_rows * num_blocks * cell_bytes

    @property
    def num_rows(self) -> int:
        return self._num_rows

    @property
    def block_bytes(self) -> int:
        return self._num_rows * self._cell_bytes

    def give_back(self, blocks: Sequence[int], is_unused: bytearray) -> None:
        """Give back the pages of `blocks`, which read as zeros from now on. `is_unused` has 1 for each block
        of the pool that nobody needs, these included, else 0. Raises OSError where the system cannot."""
        for start, end in self.spans(blocks, is_unused):
            _remove(start, end - start)

    def spans(self, blocks: Sequence[int], is_unused: bytearray) -> Iterator[tuple[int, int]]:
        """Addresses of whole pages of `blocks`, from and to, on which no block lies that is in use."""
        runs = list(_runs(blocks))
        for row in range(self._num_rows):
            for run in runs:
                first, end = row * self._num_blocks + run.start, row * self._num_blocks + run.stop
                start, stop = self._place(first), self._place(end)
                low, high = self._page(start), self._page(stop + self._page_bytes - 1)
                if low < self._address or not self._all_unused(self._cell(low), first, is_unused):
                    low = self._page(start + self._page_bytes - 1)
                if high > self._end or not self._all_unused(end, self._cell(high - 1) + 1, is_unused):
                    high = self._page(stop)
                if low < high:
                    yield low, high

    def _all_unused(self, first: int, end: int, is_unused: bytearray) -> bool:
        """Return whether cells [first, end), counted through all rows, are of blocks that are unused."""
        if end - first >= self._num_blocks:
            return 0 not in is_unused
        first, end = first % self._num_blocks, first % self._num_blocks + max(0, end - first)
        over = max(0, end - self._num_blocks)
        return is_unused.find(0, first, end) < 0 and is_unused.find(0, 0, over) < 0

    def _place(self, cell: int) -> int:
        return self._address + cell * self._cell_bytes

    def _cell(self, place: int) -> int:
        return (place - self._address) // self._cell_bytes

    def _page(self, place: int) -> int:
        return place // self._page_bytes * self._page_bytes


def _runs(blocks: Sequence[int]) -> Iterator[range]:
    """Neighbours among the blocks, as ranges."""
    ordered = sorted(blocks)
    first = 0
    for at in range(1, len(ordered) + 1):
        if at == len(ordered) or ordered[at] != ordered[at - 1] + 1:
            yield range(ordered[first], ordered[at - 1] + 1)
            first = at


def _remove(address: int, nbytes: int) -> None:
    """Make a hole in shared memory: whoever has it mapped reads zeros there, and it takes no memory."""
    if sys.platform != "linux":
        raise OSError("memory that processes share is given back on Linux alone")
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    if madvise(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), mmap.MADV_REMOVE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
