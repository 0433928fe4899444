"""Attention over paged KV in Triton: fixed splits of the keys, then their sum in a fixed order.

A row's keys are cut at absolute positions (every SPLIT_KEYS), each split is reduced alone, and the splits
are added in ascending order. Nothing that a row computes depends on which other rows are in the batch.
"""

# Triton compiles these functions: their arguments have no Python types, and constants are named as constants.
# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"
# ruff: noqa: N803, PLR0915, PLR0917

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from shared.engine.cuda.launch import INTERPRETED, LAUNCH
from shared.engine.cuda.paged import PagedKv, PagedRows
from shared.engine.memory.kv_pool import BLOCK_TOKENS

SPLIT_KEYS = 256  # a constant: it decides the order of the sums, and so the bits of the result
_STEP_KEYS = 64
_MIN_DOT = 16  # the smallest matrix side that tensor cores take


def rows_per_tile(heads_per_kv: int) -> int:
    """Return how many rows of one sequence a tile holds: their query heads fill the matrix unit's smallest
    side."""
    return _tile_height(heads_per_kv) // heads_per_kv


def splits_for(num_keys: int) -> int:
    """Return how many splits `num_keys` keys make."""
    return -(-num_keys // SPLIT_KEYS)


def attend_paged(
    queries: Tensor, kv: PagedKv, rows: PagedRows, scale: float, window_tokens: int | None, softcap: float
) -> Tensor:
    """[T, heads, D] -> [T, heads, D]: each row over its own sequence's keys up to itself.

    `window_tokens` n: only the last n of them. `softcap` 0: none.
    """
    num_rows, num_heads, head_dim = queries.shape
    num_kv_heads = kv.keys.shape[2]
    heads_per_kv = num_heads // num_kv_heads
    padded_dim = max(_MIN_DOT, triton.next_power_of_2(head_dim))
    partial = torch.empty(
        num_rows, num_heads, rows.num_splits, head_dim, dtype=torch.float32, device=queries.device
    )
    stats = torch.empty(num_rows, num_heads, rows.num_splits, 2, dtype=torch.float32, device=queries.device)
    out = torch.empty(num_rows, num_heads, head_dim, dtype=queries.dtype, device=queries.device)
    scaled = kv.key_scales is not None
    key_scales = kv.key_scales if kv.key_scales is not None else kv.keys
    value_scales = kv.value_scales if kv.value_scales is not None else kv.values
    _split_kernel[(len(rows.tiles), num_kv_heads, rows.num_splits)](
        queries,
        kv.keys,
        kv.values,
        key_scales,
        value_scales,
        rows.positions,
        rows.tiles,
        rows.tables,
        partial,
        stats,
        queries.stride(0),
        queries.stride(1),
        kv.keys.stride(0),
        kv.keys.stride(1),
        kv.keys.stride(2),
        key_scales.stride(0),
        key_scales.stride(1),
        rows.tables.stride(0),
        rows.num_splits,
        scale,
        HEADS_PER_KV=heads_per_kv,
        NUM_HEADS=num_heads,
        HEIGHT=_tile_height(heads_per_kv),
        HEAD_DIM=head_dim,
        PADDED_DIM=padded_dim,
        WINDOW=window_tokens or 0,
        SOFTCAP=softcap,
        SCALED=scaled,
        BLOCK=BLOCK_TOKENS,
        SPLIT=SPLIT_KEYS,
        STEP=_STEP_KEYS,
        WIDEN=INTERPRETED,
        **LAUNCH,
    )
    _combine_kernel[(num_rows, num_kv_heads)](
        partial,
        stats,
        rows.positions,
        out,
        rows.num_splits,
        HEADS_PER_KV=heads_per_kv,
        PADDED_HEADS=triton.next_power_of_2(heads_per_kv),
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        PADDED_DIM=padded_dim,
        WINDOW=window_tokens or 0,
        SPLIT=SPLIT_KEYS,
        **LAUNCH,
    )
    return out


def _tile_height(heads_per_kv: int) -> int:
    return max(_MIN_DOT, int(triton.next_power_of_2(heads_per_kv)))


@triton.jit(do_not_specialize=["table_stride", "num_splits"])  # one binary, whatever their values
def _split_kernel(
    queries,
    keys,
    values,
    key_scales,
    value_scales,
    positions,
    tiles,
    tables,
    partial,
    stats,
    query_row_stride,
    query_head_stride,
    block_stride,
    token_stride,
    head_stride,
    scale_block_stride,
    scale_token_stride,
    table_stride,
    num_splits,
    score_scale,
    HEADS_PER_KV: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    HEIGHT: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    STEP: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One split of one tile of rows, for the query heads of one KV head: an online softmax over its keys."""
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    first_row = tl.load(tiles + 3 * tile)
    num_rows = tl.load(tiles + 3 * tile + 1)
    if num_rows == 0:
        return
    lowest = tl.load(positions + first_row)
    highest = tl.load(positions + first_row + num_rows - 1)
    begin = split * SPLIT
    end = tl.minimum(begin + SPLIT, highest + 1)
    if WINDOW:
        begin = tl.maximum(begin, tl.maximum(lowest - WINDOW + 1, 0) // STEP * STEP)
    if begin >= end:
        return

    line = tl.arange(0, HEIGHT)  # row-major: all heads of the first row, then of the second
    row = first_row + line // HEADS_PER_KV
    head = kv_head * HEADS_PER_KV + line % HEADS_PER_KV
    present = line < num_rows * HEADS_PER_KV
    position = tl.load(positions + row, mask=present, other=-1)
    dim = tl.arange(0, PADDED_DIM)
    in_head = dim < HEAD_DIM
    query = tl.load(
        queries
        + row[:, None].to(tl.int64) * query_row_stride
        + head[:, None] * query_head_stride
        + dim[None, :],
        mask=present[:, None] & in_head[None, :],
        other=0.0,
    )
    dot_dtype = tl.float32 if WIDEN else query.dtype
    query = query.to(dot_dtype)
    table = tables + tl.load(tiles + 3 * tile + 2).to(tl.int64) * table_stride

    highest_score = tl.full([HEIGHT], float("-inf"), tl.float32)
    total = tl.full([HEIGHT], 0.0, tl.float32)
    sums = tl.full([HEIGHT, PADDED_DIM], 0.0, tl.float32)
    for start in range(begin, end, STEP):
        key_position = start + tl.arange(0, STEP)
        in_split = key_position < end
        block = tl.load(table + key_position // BLOCK, mask=in_split, other=0).to(tl.int64)
        offset = block * block_stride + (key_position % BLOCK) * token_stride + kv_head * head_stride
        key = tl.load(
            keys + offset[None, :] + dim[:, None], mask=in_split[None, :] & in_head[:, None], other=0.0
        )
        scores = tl.dot(query, key.to(dot_dtype), input_precision="ieee") * score_scale  # [HEIGHT, STEP]
        if SCALED:
            scale_offset = block * scale_block_stride + (key_position % BLOCK) * scale_token_stride + kv_head
            key_scale = tl.load(key_scales + scale_offset, mask=in_split, other=0.0).to(tl.float32)
            scores = scores * key_scale[None, :]
        if SOFTCAP > 0:
            scores = SOFTCAP * (2 * tl.sigmoid(2 * scores / SOFTCAP) - 1)  # cap * tanh(score / cap)
        seen = key_position[None, :] <= position[:, None]
        if WINDOW:
            seen = seen & (key_position[None, :] > position[:, None] - WINDOW)
        scores = tl.where(seen, scores * 1.4426950408889634, float("-inf"))  # log2(e): exp2 from here on

        # A step that shows a row nothing leaves its state as it was, bit for bit.
        new_highest = tl.maximum(highest_score, tl.max(scores, axis=1))
        finite = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        shrink = tl.exp2(highest_score - finite)
        weights = tl.exp2(scores - finite[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        value = tl.load(
            values + offset[:, None] + dim[None, :], mask=in_split[:, None] & in_head[None, :], other=0.0
        )
        if SCALED:
            value_scale = tl.load(value_scales + scale_offset, mask=in_split, other=0.0).to(tl.float32)
            weights = weights * value_scale[None, :]
        sums = sums * shrink[:, None] + tl.dot(
            weights.to(dot_dtype), value.to(dot_dtype), input_precision="ieee"
        )
        highest_score = new_highest

    place = (row.to(tl.int64) * NUM_HEADS + head) * num_splits + split
    tl.store(
        partial + place[:, None] * HEAD_DIM + dim[None, :], sums, mask=present[:, None] & in_head[None, :]
    )
    tl.store(stats + 2 * place, highest_score, mask=present)
    tl.store(stats + 2 * place + 1, total, mask=present)


@triton.jit(do_not_specialize=["num_splits"])
def _combine_kernel(
    partial,
    stats,
    positions,
    out,
    num_splits,
    HEADS_PER_KV: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Add the splits of one row, for the query heads of one KV head, in ascending order."""
    row = tl.program_id(0)
    line = tl.arange(0, PADDED_HEADS)
    present = line < HEADS_PER_KV
    head = tl.program_id(1) * HEADS_PER_KV + line
    position = tl.load(positions + row)
    dim = tl.arange(0, PADDED_DIM)
    inside = present[:, None] & (dim < HEAD_DIM)[None, :]
    first = 0
    if WINDOW:
        first = tl.maximum(position - WINDOW + 1, 0) // SPLIT
    place = (row.to(tl.int64) * NUM_HEADS + head) * num_splits
    highest_score = tl.full([PADDED_HEADS], float("-inf"), tl.float32)
    total = tl.full([PADDED_HEADS], 0.0, tl.float32)
    sums = tl.full([PADDED_HEADS, PADDED_DIM], 0.0, tl.float32)
    for split in range(first, (position + SPLIT) // SPLIT):  # none where position is -1
        score = tl.load(stats + 2 * (place + split), mask=present, other=0.0)
        split_total = tl.load(stats + 2 * (place + split) + 1, mask=present, other=1.0)
        split_sums = tl.load(
            partial + (place + split)[:, None] * HEAD_DIM + dim[None, :], mask=inside, other=0.0
        )
        new_highest = tl.maximum(highest_score, score)
        shrink = tl.exp2(highest_score - new_highest)
        share = tl.exp2(score - new_highest)
        total = total * shrink + split_total * share
        sums = sums * shrink[:, None] + split_sums * share[:, None]
        highest_score = new_highest
    result = sums / tl.where(total > 0, total, 1.0)[:, None]
    out_place = (row.to(tl.int64) * NUM_HEADS + head) * HEAD_DIM
    tl.store(out + out_place[:, None] + dim[None, :], result, mask=inside)
