"""Attention of the C++ kernels alone, over keys and values that a test has."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from shared.engine.memory.kv_pool import BLOCK_TOKENS
from shared.engine.native.library import AttentionShape, PoolShape

BF16_KIND = 1
INT8_KIND = 2


def attend(
    kernels: ctypes.CDLL,
    keys_values: Tensor,
    queries: Tensor,
    start: int,
    *,
    window: int = 0,
    soft_cap: float = 0.0,
    scales: Tensor | None = None,
) -> Tensor:
    """Return float32 like `queries` [T, heads, D], which are those of positions from `start` on.

    `keys_values` are bf16 [2, T, KV heads, D], of all tokens, or int8 with `scales`, which are float16
    [2, T, KV heads]. Places of the last block that no token has yet hold NaN, of int8 in their
    scales.
    """
    kv_heads, head_dim = keys_values.shape[2:]
    parts = [_in_blocks(keys_values)]
    if scales is not None:
        parts.append(_in_blocks(scales))
    blocks = torch.cat([each.reshape(len(each), -1).view(torch.uint8) for each in parts], dim=1)
    table = torch.arange(len(blocks) - 1, -1, -1, dtype=torch.int32)
    kind = BF16_KIND if scales is None else INT8_KIND
    pool = PoolShape(blocks.data_ptr(), len(blocks), blocks[0].nbytes, kind)
    shape = AttentionShape(queries.shape[1], kv_heads, head_dim, 1.0, soft_cap)
    queries = queries.contiguous()
    out = torch.full_like(queries, torch.nan)
    failed = kernels.penstock_attend(
        ctypes.byref(pool),
        ctypes.byref(shape),
        window,
        table.data_ptr(),
        start,
        len(queries),
        queries.data_ptr(),
        out.data_ptr(),
    )
    assert not failed
    return out


def _in_blocks(numbers: Tensor) -> Tensor:
    """Return [blocks, 2, tokens, ...] of [2, T, ...], the last block first."""
    missing = -numbers.shape[1] % BLOCK_TOKENS
    filler = torch.nan if numbers.is_floating_point() else 127
    rest = numbers.new_full((2, missing, *numbers.shape[2:]), filler)
    padded = torch.cat([numbers, rest], dim=1)
    blocks = padded.reshape(2, -1, BLOCK_TOKENS, *numbers.shape[2:])
    return blocks.transpose(0, 1).flip(0).contiguous()
