"""Cells hashed, or copied and hashed, in one pass over memory: compiled where it can be, else with numpy.

Both ways give the same: XXH3-64 of the cells, one behind the other. The compiled way releases the GIL.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from shared.engine.native.library import library
from shared.errors import InvalidRequest

STRIPE_BYTES = 64
"""The compiled way takes cells of a multiple of this,"""
SHORT_BYTES = 240
"""and more than this altogether: shorter texts have other rules in XXH3."""

Cells = npt.NDArray[np.uint8]
"""[cells, bytes of a cell], contiguous."""


def hash_cells(cells: Cells, indices: Sequence[int]) -> int:
    """XXH3-64 of `cells[indices]`. Raises InvalidRequest for a cell that is not there."""
    wanted = _checked(cells, indices)
    kernels = _kernels(cells, wanted)
    if kernels is None:
        return xxhash.xxh3_64_intdigest(cells[wanted].data)
    return int(kernels.penstock_hash_cells(_address(cells), _address(wanted), len(wanted), cells.shape[1]))


def copy_cells(
    source: Cells,
    source_indices: Sequence[int],
    target: Cells,
    target_indices: Sequence[int],
    *,
    streamed: bool = False,
) -> int:
    """`target[target_indices] = source[source_indices]`; XXH3-64 of exactly the bytes that were copied.

    Streamed: past the CPU's caches, for what is not read again soon. No two targets may be the same. Raises
    InvalidRequest for a cell that is not there.
    """
    come_from, go_to = _checked(source, source_indices), _checked(target, target_indices)
    if len(come_from) != len(go_to) or source.shape[1] != target.shape[1]:
        raise InvalidRequest(f"{len(come_from)} cells of KV cannot be copied to {len(go_to)} places")
    kernels = _kernels(source, come_from)
    if kernels is None:
        copied = source[come_from]
        target[go_to] = copied
        return xxhash.xxh3_64_intdigest(copied.data)
    return int(
        kernels.penstock_copy_cells(
            *(_address(source), _address(come_from), _address(target), _address(go_to)),
            *(len(come_from), source.shape[1], streamed),
        )
    )


def _checked(cells: Cells, indices: Sequence[int]) -> npt.NDArray[np.int64]:
    wanted = np.array(indices, np.int64)
    if len(wanted) and (wanted.min() < 0 or wanted.max() >= len(cells)):
        raise InvalidRequest(f"cells {wanted.min()}..{wanted.max()} are not among {len(cells)}")
    return wanted


def _kernels(cells: Cells, wanted: npt.NDArray[np.int64]) -> ctypes.CDLL | None:
    cell_bytes = cells.shape[1]
    fits = cell_bytes % STRIPE_BYTES == 0 and len(wanted) * cell_bytes > SHORT_BYTES
    return library() if fits else None


def _address(array: npt.NDArray[np.generic]) -> int:
    return array.ctypes.data
