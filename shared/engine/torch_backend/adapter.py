"""Low-rank products beside a model's matrices, row by row those of the row's own adapter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.engine.batch import Span
from shared.engine.loading.adapter import AdaptedMatrix, AdapterWeights


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class TorchAdapter:
    weights: AdapterWeights

    @property
    def nbytes(self) -> int:
        parts = (part for layer in self.weights.layers for parts in layer.values() for part in parts)
        return sum(part.down.nbytes + part.up.nbytes for part in parts)


@dataclass(frozen=True, slots=True)
class AdaptedRows:
    """The rows with one adapter among those that are computed together."""

    adapter: TorchAdapter
    rows: Tensor  # [N] numbers of rows

    def add(self, layer: int, matrix: AdaptedMatrix, rows: Tensor, out: Tensor) -> None:
        """Add to `out` [T, out] what the matrix makes of `rows` [T, in]."""
        for part in self.adapter.weights.layers[layer].get(matrix, ()):
            inner = (rows.index_select(0, self.rows) @ part.down.T) * part.scale
            columns = slice(part.first_out, part.first_out + len(part.up))
            out[self.rows, columns] += inner @ part.up.T


def adapted_rows(spans: Sequence[Span]) -> tuple[AdaptedRows, ...]:
    """One for each adapter that `spans`, whose rows are numbered in their order, have."""
    rows: dict[TorchAdapter, list[int]] = {}
    first = 0
    for span in spans:
        if span.adapter is not None:
            assert isinstance(span.adapter, TorchAdapter)
            rows.setdefault(span.adapter, []).extend(range(first, first + span.num_rows))
        first += span.num_rows
    return tuple(AdaptedRows(adapter, torch.tensor(own)) for adapter, own in rows.items())
