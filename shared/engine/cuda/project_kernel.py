"""Prepare queries, keys and values for attention, in one Triton kernel.

Each head is normalised (models with a norm per head), rotated, and then a query goes to a tensor, a key or
value into its place in the KV pool, as codes with a scale where the pool holds codes.
"""

# Triton compiles these functions: their arguments have no Python types, and constants are named as constants.
# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"
# ruff: noqa: N803, PLR0915, PLR0917

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from shared.engine.cuda.launch import LAUNCH
from shared.engine.cuda.paged import PagedKv
from shared.engine.memory.kv_pool import BLOCK_TOKENS

_HEAD_TILE = 16  # heads of one program: more do not fit into registers
_LARGEST_CODE = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # as KvPool.store


def project(
    qkv: Tensor,
    num_heads: int,
    norms: tuple[Tensor, Tensor] | None,
    norm_eps: float,
    rope: Tensor | None,
    positions: Tensor,
    slots: Tensor,
    kv: PagedKv,
) -> Tensor:
    """Queries [T, heads, D], ready for attention; keys and values of all rows are then in `kv`.

    `qkv` [T, heads + 2 * kv_heads, D]. `norms`: float32 [D] weights for queries and for keys. `rope`
    [positions, R]: cosines of R / 2 angles, then sines; the first R of D dimensions turn. `positions` int32
    [T], -1 in padding. `slots` int32 [T]: block * 16 + offset; -1: the row's KV is not stored.
    """
    num_rows, all_heads, head_dim = qkv.shape
    num_kv_heads = (all_heads - num_heads) // 2
    queries = torch.empty(num_rows, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    scaled = kv.key_scales is not None
    key_scales = kv.key_scales if kv.key_scales is not None else kv.keys
    value_scales = kv.value_scales if kv.value_scales is not None else kv.values
    tile = min(_HEAD_TILE, triton.next_power_of_2(num_heads))
    num_tiles = triton.cdiv(num_heads, tile) + 2 * triton.cdiv(num_kv_heads, tile)
    _project_kernel[(num_rows, num_tiles)](
        qkv,
        queries,
        norms[0] if norms else qkv,
        norms[1] if norms else qkv,
        rope if rope is not None else qkv,
        positions,
        slots,
        kv.keys,
        kv.values,
        key_scales,
        value_scales,
        qkv.stride(0),
        kv.keys.stride(0),
        kv.keys.stride(1),
        kv.keys.stride(2),
        key_scales.stride(0),
        key_scales.stride(1),
        norm_eps,
        _LARGEST_CODE.get(kv.keys.dtype, 1.0),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_TILE=tile,
        HEAD_DIM=head_dim,
        PADDED_DIM=triton.next_power_of_2(head_dim),
        ROTATED=rope.shape[1] if rope is not None else 0,
        NORMED=norms is not None,
        SCALED=scaled,
        WHOLE_CODES=kv.keys.dtype == torch.int8,
        BLOCK=BLOCK_TOKENS,
        **LAUNCH,
    )
    return queries


@triton.jit
def _project_kernel(
    qkv,
    queries,
    query_norm,
    key_norm,
    rope,
    positions,
    slots,
    keys,
    values,
    key_scales,
    value_scales,
    row_stride,
    block_stride,
    token_stride,
    head_stride,
    scale_block_stride,
    scale_token_stride,
    norm_eps,
    largest_code,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    ROTATED: tl.constexpr,
    NORMED: tl.constexpr,
    SCALED: tl.constexpr,
    WHOLE_CODES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Some heads of one row: query heads, key heads or value heads."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    query_tiles: tl.constexpr = (NUM_HEADS + HEAD_TILE - 1) // HEAD_TILE
    kv_tiles: tl.constexpr = (NUM_KV_HEADS + HEAD_TILE - 1) // HEAD_TILE
    kind = (tile >= query_tiles).to(tl.int32) + (tile >= query_tiles + kv_tiles).to(tl.int32)  # q, k, v
    first_tile = tl.where(kind == 0, 0, query_tiles + (kind - 1) * kv_tiles)
    num_heads = tl.where(kind == 0, NUM_HEADS, NUM_KV_HEADS)
    first_head = tl.where(kind == 0, 0, NUM_HEADS + (kind - 1) * NUM_KV_HEADS)
    head = (tile - first_tile) * HEAD_TILE + tl.arange(0, HEAD_TILE)
    dim = tl.arange(0, PADDED_DIM)
    in_head = dim < HEAD_DIM
    inside = (head < num_heads)[:, None] & in_head[None, :]
    source = qkv + row * row_stride + (first_head + head)[:, None] * HEAD_DIM
    loaded = tl.load(source + dim[None, :], mask=inside, other=0.0)
    wide = loaded.to(tl.float32)
    if kind < 2:
        # The other half of each rotated pair is read a second time: cheaper than a shuffle.
        half: tl.constexpr = ROTATED // 2
        turns = dim < ROTATED
        partner_dim = tl.where(dim < half, dim + half, tl.where(turns, dim - half, dim))
        partner = tl.load(source + partner_dim[None, :], mask=inside, other=0.0).to(tl.float32)
        if NORMED:
            norm = query_norm if kind == 0 else key_norm
            inverse = 1.0 / tl.sqrt_rn(tl.sum(wide * wide, axis=1) / HEAD_DIM + norm_eps)
            wide *= inverse[:, None] * tl.load(norm + dim, mask=in_head, other=0.0)[None, :]
            partner *= inverse[:, None] * tl.load(norm + partner_dim, mask=in_head, other=0.0)[None, :]
            wide = wide.to(loaded.dtype).to(tl.float32)
            partner = partner.to(loaded.dtype).to(tl.float32)
        if ROTATED:
            position = tl.maximum(tl.load(positions + row), 0).to(tl.int64)
            angles = rope + position * ROTATED
            angle = tl.where(dim < half, dim, dim - half)
            cosine = tl.load(angles + angle, mask=turns, other=1.0).to(tl.float32)
            sine = tl.load(angles + half + angle, mask=turns, other=0.0).to(tl.float32)
            wide = wide * cosine[None, :] + partner * tl.where(dim < half, -sine, sine)[None, :]
    rounded = wide.to(loaded.dtype)
    if kind == 0:
        place = (row * NUM_HEADS + head) * HEAD_DIM
        tl.store(queries + place[:, None] + dim[None, :], rounded, mask=inside)
        return
    slot = tl.load(slots + row).to(tl.int64)
    if slot < 0:
        return
    pool = keys if kind == 1 else values
    place = slot // BLOCK * block_stride + slot % BLOCK * token_stride + head * head_stride
    if SCALED:
        kept = rounded.to(tl.float32)
        scale = tl.div_rn(tl.max(tl.abs(kept), axis=1), largest_code).to(tl.float16)
        divisor = tl.where(scale == 0, float("inf"), scale.to(tl.float32))
        code = tl.div_rn(kept, divisor[:, None])
        code = tl.minimum(tl.maximum(code, -largest_code), largest_code)
        if WHOLE_CODES:
            code = (code + 12582912.0) - 12582912.0  # 1.5 * 2**23: rounds to the nearest, half to even
        tl.store(pool + place[:, None] + dim[None, :], code.to(keys.dtype.element_ty), mask=inside)
        scales = key_scales if kind == 1 else value_scales
        scale_place = slot // BLOCK * scale_block_stride + slot % BLOCK * scale_token_stride + head
        tl.store(scales + scale_place, scale, mask=head < num_heads)
    else:
        tl.store(pool + place[:, None] + dim[None, :], rounded.to(keys.dtype.element_ty), mask=inside)
