"""Tell paged attention which keys rows see, and where one layer's KV lies."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from shared.engine.memory.kv_pool import KvPool


@dataclass(frozen=True, slots=True)
class PagedRows:
    """The keys that each of T rows sees. Rows of one tile belong to one sequence, at ascending positions."""

    positions: Tensor  # int32 [T]; a row sees keys 0..position; -1: padding, its output is zero
    tiles: Tensor  # int32 [N, 3]: first row, number of rows (0: nothing to do), row of `tables`
    tables: Tensor  # int32 [S, blocks]: each sequence's blocks in order
    num_splits: int  # enough for the largest position


@dataclass(frozen=True, slots=True)
class PagedKv:
    """One layer of a KvPool."""

    keys: Tensor  # [blocks, 16, kv_heads, D] in the stored dtype
    values: Tensor
    key_scales: Tensor | None  # float16 [blocks, 16, kv_heads], for codes
    value_scales: Tensor | None


def paged_kv(pool: KvPool, layer: int) -> PagedKv:
    """The KV of one layer of `pool`."""
    row = pool.layout.groups.row_of[layer]
    return PagedKv(
        pool.keys[row],
        pool.values[row],
        pool.key_scales[row] if pool.key_scales is not None else None,
        pool.value_scales[row] if pool.value_scales is not None else None,
    )
