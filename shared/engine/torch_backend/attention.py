"""Attention over paged KV: where each row's keys and values are written, and which ones it sees."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from shared.engine.batch import Span
from shared.engine.memory.kv_pool import BLOCK_TOKENS

SHORT_SPAN_ROWS = 16  # spans up to this long (decode, draft verification) share one padded call


@dataclass(frozen=True, slots=True)
class SpanGroup:
    """Spans that go through one attention call, padded to Q rows and L keys."""

    first_row: int
    num_rows: int
    batch: int  # B
    padded_rows: int  # Q
    slots: Tensor  # [B, L] of KvPool: the keys that any row of the span sees
    mask: Tensor | None  # [B, 1, Q, L] additive; None: every row sees every key, or causal
    causal: bool  # the one span starts at 0 and sees exactly itself
    padding: tuple[Tensor, Tensor] | None  # ([B * Q] source rows, [num_rows] places that are not padding)


class LayerView(NamedTuple):
    """The view of a layer's attention: keys in the blocks of its group, those in its window."""

    group: int
    window_tokens: int | None


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """One step's index work, done once and used by every layer. Rows are numbered in span order."""

    write_slots: Mapping[int, Tensor]  # [T], by the group that the layer is in
    groups: Mapping[LayerView, tuple[SpanGroup, ...]]


def plan_attention(
    spans: Sequence[Span], views: Collection[LayerView], dtype: torch.dtype, device: torch.device
) -> AttentionPlan:
    """Plan attention for layers with `views`. Spans of up to SHORT_SPAN_ROWS rows must come first."""
    num_short = sum(span.num_rows <= SHORT_SPAN_ROWS for span in spans)
    batches = [members for members in (spans[:num_short], *([span] for span in spans[num_short:])) if members]
    write: dict[int, Tensor] = {}
    groups: dict[LayerView, tuple[SpanGroup, ...]] = {}
    for view in views:
        planned: list[SpanGroup] = []
        first_row = 0
        for members in batches:
            planned.append(_group(members, first_row, view, dtype, device))
            first_row += planned[-1].num_rows
        groups[view] = tuple(planned)
        if view.group not in write:
            slots = np.concatenate([_slots(span, view.group, span.start) for span in spans])
            write[view.group] = torch.from_numpy(slots).to(device)
    return AttentionPlan(write, groups)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    group: SpanGroup,
    *,
    scale: float,
    softcap: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """[num_rows, heads, D] -> [num_rows, heads * D]: each row over its own sequence's keys up to itself.

    `keys` and `values` [B, L, kv_heads, D] are those of `group.slots`. `softcap` 0: none. `sinks` [heads]
    are scores that take part in each head's softmax and have no value.
    """
    _, num_heads, head_dim = queries.shape
    batch, rows, num_kv_heads = group.batch, group.padded_rows, keys.shape[2]
    per_kv_head = num_heads // num_kv_heads
    if group.padding is not None:
        queries = queries.index_select(0, group.padding[0])
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)  # [B, kv_heads, L, D]
    if batch == 1 and rows > 1 and not softcap and sinks is None:
        out = functional.scaled_dot_product_attention(
            queries.view(1, rows, num_heads, head_dim).transpose(1, 2),
            keys,
            values,
            attn_mask=group.mask,
            is_causal=group.causal,
            scale=scale,
            enable_gqa=per_kv_head > 1,
        )
        return out.transpose(1, 2).reshape(rows, num_heads * head_dim)
    # The query heads of one KV head become rows, so K and V are never repeated: [B, kv_heads, G * Q, D].
    folded = queries.view(batch, rows, num_kv_heads, per_kv_head, head_dim).permute(0, 2, 3, 1, 4)
    folded = folded.reshape(batch, num_kv_heads, per_kv_head * rows, head_dim)
    mask = _causal_mask(rows, queries) if group.causal else group.mask
    mask = None if mask is None else mask.repeat(1, 1, per_kv_head, 1)
    if softcap or sinks is not None:
        if sinks is not None:
            sinks = sinks.view(num_kv_heads, per_kv_head).repeat_interleave(rows, dim=1)  # [kv_heads, G * Q]
        out = _attend_plainly(folded, keys, values, mask, scale, softcap, sinks)
    else:
        out = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
    out = out.view(batch, num_kv_heads, per_kv_head, rows, head_dim).permute(0, 3, 1, 2, 4)
    out = out.reshape(batch * rows, num_heads * head_dim)
    return out if group.padding is None else out.index_select(0, group.padding[1])


def _attend_plainly(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    """No fused attention knows soft-caps or sinks: scores, cap, softmax and sum one after the other."""
    scores = torch.matmul(queries, keys.transpose(2, 3)).float() * scale  # [B, kv_heads, G * Q, L]
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores + mask
    if sinks is None:
        shares = scores.softmax(-1)
    else:
        beside = sinks.expand(len(scores), -1, -1)[..., None]
        shares = torch.cat((scores, beside), dim=-1).softmax(-1)[..., :-1]
    return torch.matmul(shares.to(values.dtype), values)


def _slots(span: Span, group: int, first: int) -> NDArray[np.int64]:
    """[end - first]: the pool's slots of positions `first` to the span's end in a group of layers."""
    positions = np.arange(first, span.end)
    blocks = np.asarray(span.tables[group][: -(-span.end // BLOCK_TOKENS)], dtype=np.int64)
    slots: NDArray[np.int64] = blocks[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
    return slots


def _group(
    spans: Sequence[Span], first_row: int, view: LayerView, dtype: torch.dtype, device: torch.device
) -> SpanGroup:
    batch, window = len(spans), view.window_tokens
    rows = max(span.num_rows for span in spans)
    # No row of a span sees anything before what its first row sees.
    firsts = [0 if window is None else max(0, span.start - window + 1) for span in spans]
    longest = max(span.end - first for span, first in zip(spans, firsts, strict=True))
    # Padding repeats a key of the sequence itself: masked out, and never another request's memory, whose
    # NaN would survive a mask.
    slots = np.empty((batch, longest), dtype=np.int64)
    for index, (span, first) in enumerate(zip(spans, firsts, strict=True)):
        own = _slots(span, view.group, first)
        slots[index, : len(own)] = own
        slots[index, len(own) :] = own[0]
    in_window = window is None or spans[0].end <= window
    causal = batch == 1 and rows > 1 and spans[0].start == 0 and in_window
    lone_row = batch == 1 and rows == 1
    mask = None if causal or lone_row else _mask(spans, rows, firsts, longest, window)
    padding = None if all(span.num_rows == rows for span in spans) else _padding(spans, rows, device)
    return SpanGroup(
        first_row=first_row,
        num_rows=sum(span.num_rows for span in spans),
        batch=batch,
        padded_rows=rows,
        slots=torch.from_numpy(slots).to(device),
        mask=None if mask is None else mask.to(device, dtype),
        causal=causal,
        padding=padding,
    )


def _mask(
    spans: Sequence[Span], rows: int, firsts: Sequence[int], longest: int, window: int | None
) -> Tensor:
    """[B, 1, Q, L]: 0 where row `start + q` sees key `first + l`, -inf elsewhere.

    Padding rows repeat the span's last position, so that no row is masked out entirely.
    """
    offsets = np.minimum(np.arange(rows)[None, :], np.array([span.num_rows - 1 for span in spans])[:, None])
    queries = (np.array([span.start for span in spans])[:, None] + offsets)[:, :, None]
    keys = (np.array(firsts)[:, None] + np.arange(longest)[None, :])[:, None, :]
    hidden = keys > queries
    if window is not None:
        hidden |= keys <= queries - window
    return torch.zeros(hidden.shape).masked_fill_(torch.from_numpy(hidden), -torch.inf)[:, None]


def _causal_mask(rows: int, like: Tensor) -> Tensor:
    """[1, 1, rows, rows] additive, for the calls that take no `is_causal`."""
    return like.new_full((rows, rows), -torch.inf).triu(1)[None, None]


def _padding(spans: Sequence[Span], rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    sources: list[int] = []
    places: list[int] = []
    first = 0
    for index, span in enumerate(spans):
        sources += [first + min(offset, span.num_rows - 1) for offset in range(rows)]
        places += range(index * rows, index * rows + span.num_rows)
        first += span.num_rows
    return torch.tensor(sources, device=device), torch.tensor(places, device=device)
