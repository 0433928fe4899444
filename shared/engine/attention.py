"""Attention over paged KV: where each row's keys and values are written, and which ones it sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from shared.engine.batch import Span
from shared.engine.kv_pool import BLOCK_TOKENS

SHORT_SPAN_ROWS = 16  # spans up to this long (decode, draft verification) share one padded call
_BLOCK_ROWS = 2 * BLOCK_TOKENS  # KvPool.rows: 16 rows of K, then 16 of V


@dataclass(frozen=True, slots=True)
class SpanGroup:
    """Spans that go through one attention call, padded to Q rows and L keys."""

    first_row: int
    num_rows: int
    batch: int  # B
    padded_rows: int  # Q
    kv_rows: Tensor  # [2 * B * L] rows of KvPool.rows: all K, then all V
    mask: Tensor | None  # [B, 1, Q, L] additive; None: every row sees every key, or causal
    causal: bool  # the one span starts at 0 and sees exactly itself
    padding: tuple[Tensor, Tensor] | None  # ([B * Q] source rows, [num_rows] places that are not padding)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """One step's index work, done once and used by every layer. Rows are numbered in span order."""

    write_rows: Tensor  # [2 * T] rows of KvPool.rows: all K, then all V
    groups: tuple[SpanGroup, ...]


def plan_attention(spans: Sequence[Span], dtype: torch.dtype) -> AttentionPlan:
    """Plan spans that are ordered short ones first (`num_rows` <= SHORT_SPAN_ROWS)."""
    key_rows = [_key_rows(span)[span.start :] for span in spans]
    write = np.concatenate(key_rows)
    num_short = sum(span.num_rows <= SHORT_SPAN_ROWS for span in spans)
    groups: list[SpanGroup] = []
    first_row = 0
    for members in [spans[:num_short], *([span] for span in spans[num_short:])]:
        if members:
            groups.append(_group(members, first_row, dtype))
            first_row += groups[-1].num_rows
    return AttentionPlan(torch.from_numpy(np.concatenate((write, write + BLOCK_TOKENS))), tuple(groups))


def write_kv(layer_rows: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan) -> None:
    """Store `keys` and `values` [T, kv_heads, D] into one layer of KvPool.rows."""
    rows = torch.cat((keys.flatten(1), values.flatten(1)))
    layer_rows.index_copy_(0, plan.write_rows, rows)


def attend(queries: Tensor, layer_rows: Tensor, plan: AttentionPlan, num_kv_heads: int) -> Tensor:
    """[T, heads, D] -> [T, heads * D]: each row over its own sequence's keys up to itself."""
    parts = [
        _attend_group(
            queries[group.first_row : group.first_row + group.num_rows], layer_rows, group, num_kv_heads
        )
        for group in plan.groups
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_group(queries: Tensor, layer_rows: Tensor, group: SpanGroup, num_kv_heads: int) -> Tensor:
    _, num_heads, head_dim = queries.shape
    batch, rows, per_kv_head = group.batch, group.padded_rows, num_heads // num_kv_heads
    if group.padding is not None:
        queries = queries.index_select(0, group.padding[0])
    kv = layer_rows.index_select(0, group.kv_rows).view(2, batch, -1, num_kv_heads, head_dim)
    keys, values = kv[0].transpose(1, 2), kv[1].transpose(1, 2)  # [B, kv_heads, L, D]
    if batch == 1 and rows > 1:
        out = functional.scaled_dot_product_attention(
            queries.view(1, rows, num_heads, head_dim).transpose(1, 2),
            keys,
            values,
            attn_mask=group.mask,
            is_causal=group.causal,
            enable_gqa=per_kv_head > 1,
        )
        return out.transpose(1, 2).reshape(rows, num_heads * head_dim)
    # The query heads of one KV head become rows, so K and V are never repeated: [B, kv_heads, G * Q, D].
    folded = queries.view(batch, rows, num_kv_heads, per_kv_head, head_dim).permute(0, 2, 3, 1, 4)
    folded = folded.reshape(batch, num_kv_heads, per_kv_head * rows, head_dim)
    mask = None if group.mask is None else group.mask.repeat(1, 1, per_kv_head, 1)
    out = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
    out = out.view(batch, num_kv_heads, per_kv_head, rows, head_dim).permute(0, 3, 1, 2, 4)
    out = out.reshape(batch * rows, num_heads * head_dim)
    return out if group.padding is None else out.index_select(0, group.padding[1])


def _key_rows(span: Span) -> NDArray[np.int64]:
    """[end]: the K row in KvPool.rows of each position of the sequence; V is 16 further."""
    num_blocks = -(-span.end // BLOCK_TOKENS)
    blocks = np.asarray(span.blocks[:num_blocks], dtype=np.int64)
    return np.add.outer(blocks * _BLOCK_ROWS, np.arange(BLOCK_TOKENS)).reshape(-1)[: span.end]


def _group(spans: Sequence[Span], first_row: int, dtype: torch.dtype) -> SpanGroup:
    batch = len(spans)
    rows = max(span.num_rows for span in spans)
    longest = max(span.end for span in spans)
    # Padding repeats the sequence's own first key: masked out, and never another request's memory, whose
    # NaN would survive a mask.
    kv_rows = np.empty((batch, longest), dtype=np.int64)
    for index, span in enumerate(spans):
        own = _key_rows(span)
        kv_rows[index, : span.end] = own
        kv_rows[index, span.end :] = own[0]
    causal = batch == 1 and rows > 1 and spans[0].start == 0
    lone_row = batch == 1 and rows == 1
    flat = kv_rows.reshape(-1)
    return SpanGroup(
        first_row=first_row,
        num_rows=sum(span.num_rows for span in spans),
        batch=batch,
        padded_rows=rows,
        kv_rows=torch.from_numpy(np.concatenate((flat, flat + BLOCK_TOKENS))),
        mask=None if causal or lone_row else _mask(spans, rows, longest, dtype),
        causal=causal,
        padding=None if all(span.num_rows == rows for span in spans) else _padding(spans, rows),
    )


def _mask(spans: Sequence[Span], rows: int, longest: int, dtype: torch.dtype) -> Tensor:
    """[B, 1, Q, L]: 0 where row `start + q` sees key l (l <= start + q), -inf elsewhere.

    Padding rows repeat the span's last position, so that no row is masked out entirely.
    """
    starts = np.array([span.start for span in spans])[:, None]
    offsets = np.minimum(np.arange(rows)[None, :], np.array([span.num_rows - 1 for span in spans])[:, None])
    hidden = np.arange(longest)[None, None, :] > (starts + offsets)[:, :, None]
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(torch.from_numpy(hidden), -torch.inf)
    return mask[:, None]


def _padding(spans: Sequence[Span], rows: int) -> tuple[Tensor, Tensor]:
    sources: list[int] = []
    places: list[int] = []
    first = 0
    for index, span in enumerate(spans):
        sources += [first + min(offset, span.num_rows - 1) for offset in range(rows)]
        places += range(index * rows, index * rows + span.num_rows)
        first += span.num_rows
    return torch.tensor(sources), torch.tensor(places)
