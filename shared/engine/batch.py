"""Describe one forward pass: rows of tokens, span by span."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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


@dataclass(frozen=True, slots=True)
class Batch:
    """`token_ids` [T] are the spans' tokens in span order; `logit_rows` [R] ascend."""

    token_ids: Sequence[int]
    spans: Sequence[Span]
    logit_rows: Sequence[int]
    on_kv_written: Callable[[int], None] | None = None  # (layer): K and V of all rows are in the pool


class Model(Protocol):
    """A backend: computes logits and writes KV into the pool it was made with. Holds no sequence's state."""

    def forward(self, batch: Batch) -> Tensor:
        """float32 logits [R, vocab] on the CPU. The caller may overwrite them, and the next call does."""
        ...

    def close(self) -> None:
        """Give back what lies outside of this process; nothing may be computed afterwards."""
        ...
