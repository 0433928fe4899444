"""Describe one forward pass: rows of tokens, span by span."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class PackedAdapter(Protocol):
    """The weights of an adapter in the form of the backend that packed them. Nothing changes it."""

    @property
    def nbytes(self) -> int: ...


class Span(NamedTuple):
    """`num_rows` consecutive tokens of one sequence, the first at absolute position `start`."""

    start: int
    num_rows: int
    tables: Sequence[
        Sequence[int]
    ]  # by group of layers: the sequence's blocks, at least up to the span's end
    adapter: PackedAdapter | None = None  # over the model's weights, for these rows

    @property
    def end(self) -> int:
        return self.start + self.num_rows


class Taps:
    """The residual stream after some decoder layers, of the rows that have logits: what a draft head reads.

    A forward pass overwrites what the one before has left.
    """

    def __init__(self, layers: Sequence[int], hidden_size: int) -> None:
        """`layers` ascend, the first layer is 0."""
        self.layers = tuple(layers)
        self.rows = torch.empty(0, len(self.layers), hidden_size)

    def room(self, num_rows: int) -> Tensor:
        """Return float32 [num_rows, layers, hidden] for a backend to write."""
        if num_rows > len(self.rows):
            self.rows = torch.empty(num_rows, *self.rows.shape[1:])
        return self.rows[:num_rows]


@dataclass(frozen=True, slots=True)
class Batch:
    """`token_ids` [T] are the spans' tokens in span order; `logit_rows` [R] ascend."""

    token_ids: Sequence[int]
    spans: Sequence[Span]
    logit_rows: Sequence[int]
    on_kv_written: Callable[[int], None] | None = None  # (layer): K and V of all rows are in the pool
    taps: Taps | None = None  # to be filled; only the backends of one process on the CPU do so


class Model(Protocol):
    """A backend: computes logits and writes KV into the pool it was made with. Holds no sequence's state."""

    def forward(self, batch: Batch) -> Tensor:
        """float32 logits [R, vocab] on the CPU. The caller may overwrite them, and the next call does."""
        ...

    def close(self) -> None:
        """Give back what lies outside of this process; nothing may be computed afterwards."""
        ...
