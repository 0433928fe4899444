"""From items of sequences to logits: makes the batch of one forward pass and runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from shared.engine.batch import Batch, Model, Span

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


def run(model: Model, items: Sequence[RunItem]) -> Tensor:
    """float32 logits [sum of num_logits, vocab], in the order of `items`."""
    token_ids: list[int] = []
    logit_rows: list[int] = []
    spans: list[Span] = []
    for item in items:
        token_ids += item.token_ids
        logit_rows += range(len(token_ids) - item.num_logits, len(token_ids))
        spans.append(Span(item.start, len(item.token_ids), item.blocks))
    return model.forward(Batch(token_ids, spans, logit_rows, _fan_out(items)))


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
