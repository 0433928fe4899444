"""Compute logits of sequences' tokens: make the batch of one forward pass and have the backend compute it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import torch
from torch import Tensor

from shared.engine.batch import Batch, Model, PackedAdapter, Span, Taps
from shared.records import maker_of

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


class ModelColumns(NamedTuple):
    """The fields of many `ModelInput`s, each as a column: a step of many rows makes no object for each."""

    token_ids: list[Sequence[int]]
    starts: list[int]
    tables: list[Sequence[Sequence[int]]]
    num_logits: list[int]
    listeners: list[LayerCallback | None]
    adapters: list[PackedAdapter | None]

    @classmethod
    def of(cls, inputs: Iterable[ModelInput]) -> ModelColumns:
        return cls(*map(list, zip(*inputs, strict=True)))


_span_of = maker_of(Span)


class ModelRunner:
    """Runs a `Model`, whichever backend it is. `taps`, unless None, are filled with every batch."""

    def __init__(self, model: Model, taps: Taps | None = None) -> None:
        self._model = model
        self.taps = taps

    def compute_logits(self, inputs: Sequence[ModelInput]) -> Tensor:
        """float32 logits [sum of num_logits, vocab], in the order of `inputs`, until the next call."""
        return self.compute_columns(ModelColumns.of(inputs))

    def compute_columns(self, columns: ModelColumns) -> Tensor:
        """The same of inputs that are columns."""
        ids, starts, tables, num_logits, listeners, adapters = columns
        num_rows = list(map(len, ids))
        token_ids = list(chain.from_iterable(ids))
        if len(token_ids) == sum(num_logits):  # a logit of every row, as mostly
            logit_rows = list(range(len(token_ids)))
        else:
            ends = accumulate(num_rows)
            logit_rows = [
                row for end, count in zip(ends, num_logits, strict=True) for row in range(end - count, end)
            ]
        spans = list(map(_span_of, zip(starts, num_rows, tables, adapters, strict=True)))
        on_kv_written = None
        if listeners.count(None) < len(listeners):
            on_kv_written = _fan_out(list(zip(listeners, starts, num_rows, strict=True)))
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


def _fan_out(spans: Iterable[tuple[LayerCallback | None, int, int]]) -> Callable[[int], None]:
    listeners = [(on_layer, start, start + count) for on_layer, start, count in spans if on_layer is not None]

    def on_kv_written(layer: int) -> None:
        for on_layer, start, end in listeners:
            on_layer(layer, start, end)

    return on_kv_written
