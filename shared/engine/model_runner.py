"""Compute logits of sequences' tokens: make the batch of one forward pass and have the backend compute it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
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
        ids, starts, tables, num_logits, listeners, adapters = zip(*inputs, strict=True)
        num_rows = tuple(map(len, ids))
        ends = accumulate(num_rows)
        logit_rows = [
            row for end, count in zip(ends, num_logits, strict=True) for row in range(end - count, end)
        ]
        spans = list(map(Span._make, zip(starts, num_rows, tables, adapters, strict=True)))
        on_kv_written = None if listeners.count(None) == len(listeners) else _fan_out(inputs)
        token_ids = list(chain.from_iterable(ids))
        return self._model.forward(Batch(token_ids, spans, logit_rows, on_kv_written, self.taps))

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


def _fan_out(inputs: Sequence[ModelInput]) -> Callable[[int], None]:
    listeners = [
        (each.on_layer, each.start, each.start + len(each.token_ids))
        for each in inputs
        if each.on_layer is not None
    ]

    def on_kv_written(layer: int) -> None:
        for on_layer, start, end in listeners:
            on_layer(layer, start, end)

    return on_kv_written
