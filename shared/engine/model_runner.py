"""Compute logits of sequences' tokens: make the batch of one forward pass and have the backend compute it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from shared.engine.batch import Batch, Model, PackedAdapter, Span, Taps

LayerCallback = Callable[[int, int, int], None]
"""(layer, start_token, end_token): K and V of that token range are in the pool for that layer."""


class ModelInput(NamedTuple):
    """Tokens of one sequence to compute now; logits are wanted for the last `num_logits` of them."""

    token_ids: Sequence[int]
    start: int
    tables: Sequence[Sequence[int]]
    num_logits: int
    on_layer: LayerCallback | None = None
    adapter: PackedAdapter | None = None


class ModelRunner:
    """Runs a `Model`, whichever backend it is. `taps`, unless None, are filled with every batch."""

    def __init__(self, model: Model, taps: Taps | None = None) -> None:
        self._model = model
        self.taps = taps

    def compute_logits(self, inputs: Sequence[ModelInput]) -> Tensor:
        """float32 logits [sum of num_logits, vocab], in the order of `inputs`, until the next call."""
        token_ids: list[int] = []
        logit_rows: list[int] = []
        spans: list[Span] = []
        for ids, start, tables, num_logits, _, adapter in inputs:
            token_ids += ids
            num_rows = len(token_ids)
            if num_logits == 1:  # as of most
                logit_rows.append(num_rows - 1)
            else:
                logit_rows += range(num_rows - num_logits, num_rows)
            spans.append(Span(start, len(ids), tables, adapter))
        return self._model.forward(Batch(token_ids, spans, logit_rows, _fan_out(inputs), self.taps))

    def compute_all(
        self,
        token_ids: Sequence[int],
        tables: Sequence[Sequence[int]],
        adapter: PackedAdapter | None,
        most_rows: int,
    ) -> Tensor:
        """float32 logits [len(token_ids), vocab] of one sequence, at most `most_rows` of them at a time."""
        chunks = []
        for start in range(0, len(token_ids), most_rows):
            chunk = token_ids[start : start + most_rows]
            inputs = ModelInput(chunk, start, tables, len(chunk), adapter=adapter)
            chunks.append(self.compute_logits([inputs]).clone())
        return torch.cat(chunks)


def _fan_out(inputs: Sequence[ModelInput]) -> Callable[[int], None] | None:
    listeners = [
        (each.on_layer, each.start, each.start + len(each.token_ids))
        for each in inputs
        if each.on_layer is not None
    ]
    if not listeners:
        return None

    def on_kv_written(layer: int) -> None:
        for on_layer, start, end in listeners:
            on_layer(layer, start, end)

    return on_kv_written
