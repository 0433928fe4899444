"""From spans of sequences to logits: builds the tensors of one forward pass and runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.engine.attention import SHORT_SPAN_ROWS, Span, plan_attention
from shared.engine.kv_pool import TORCH_DTYPES, KvPool
from shared.engine.model import LlamaModel

LayerCallback = Callable[[int, int, int], None]
"""(layer, start_token, end_token): K and V of that token range are in the pool for that layer."""


@dataclass(frozen=True, slots=True)
class RunItem:
    """Tokens of one sequence to compute now; logits are wanted for the last `num_logits` of them."""

    token_ids: Sequence[int]
    start: int
    blocks: Sequence[int]
    num_logits: int
    on_layer: LayerCallback | None = None


class Runner:
    """Runs one model against one KV pool."""

    def __init__(self, model: LlamaModel, pool: KvPool) -> None:
        self._model = model
        self._pool = pool
        self._dtype = TORCH_DTYPES[pool.layout.dtype]

    def run(self, items: Sequence[RunItem]) -> Tensor:
        """float32 logits [sum of num_logits, vocab], in the order of `items`."""
        short = [item for item in items if len(item.token_ids) <= SHORT_SPAN_ROWS]
        long = [item for item in items if len(item.token_ids) > SHORT_SPAN_ROWS]
        ordered = [*short, *long]
        first_rows = dict(zip(map(id, ordered), _offsets(ordered), strict=True))
        plan = plan_attention(
            [Span(item.start, len(item.token_ids), item.blocks) for item in ordered], self._dtype
        )
        token_ids = [token_id for item in ordered for token_id in item.token_ids]
        positions = [position for item in ordered for position in _positions(item)]
        logit_rows = [row for item in items for row in _logit_rows(item, first_rows[id(item)])]
        with torch.inference_mode():
            return self._model.forward(
                torch.tensor(token_ids),
                torch.tensor(positions),
                plan,
                self._pool,
                torch.tensor(logit_rows, dtype=torch.int64),
                _fan_out(items),
            )


def _offsets(items: Sequence[RunItem]) -> list[int]:
    offsets, total = [], 0
    for item in items:
        offsets.append(total)
        total += len(item.token_ids)
    return offsets


def _positions(item: RunItem) -> range:
    return range(item.start, item.start + len(item.token_ids))


def _logit_rows(item: RunItem, first_row: int) -> range:
    end = first_row + len(item.token_ids)
    return range(end - item.num_logits, end)


def _fan_out(items: Sequence[RunItem]) -> Callable[[int], None] | None:
    listeners = [
        (item.on_layer, item.start, item.start + len(item.token_ids))
        for item in items
        if item.on_layer is not None
    ]
    if not listeners:
        return None

    def on_kv_written(layer: int) -> None:
        for on_layer, start, end in listeners:
            on_layer(layer, start, end)

    return on_kv_written
