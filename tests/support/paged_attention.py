"""The attention kernel's queries and keys in a poisoned pool, and plain attention over the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shared.engine.cuda.attention_kernel import attend_paged, rows_per_tile, splits_for
from shared.engine.cuda.paged import PagedRows, paged_kv
from shared.engine.dtypes import TORCH_DTYPES
from shared.engine.memory.kv_pool import BLOCK_TOKENS, KvLayout, KvPool

NUM_BLOCKS = 60
TOLERANCE = {"float32": 2e-6, "bfloat16": 2e-2}


@dataclass(frozen=True)
class Shape:
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 24
    dtype: str = "float32"
    kv_dtype: str = "auto"
    window: int | None = None
    softcap: float = 0.0


@dataclass(frozen=True)
class Sequence:
    """The last `num_rows` tokens of a sequence of `length` ask."""

    length: int
    num_rows: int = 1


class Case:
    """A pool with the KV of some sequences in shuffled blocks, and the queries of their last rows."""

    def __init__(self, shape: Shape, sequences: list[Sequence], seed: int = 0) -> None:
        self.shape = shape
        self.sequences = sequences
        self.dtype = TORCH_DTYPES[shape.dtype]
        kv_dtype = shape.dtype if shape.kv_dtype == "auto" else shape.kv_dtype
        layout = KvLayout(1, shape.kv_heads, shape.head_dim, kv_dtype)
        self.pool = KvPool(layout, NUM_BLOCKS, compute_dtype=self.dtype)
        self.pool.data.fill_(0xFF)  # NaN in every float format: what nobody wrote must not be read
        generator = torch.Generator().manual_seed(seed)
        free = torch.randperm(NUM_BLOCKS, generator=generator).tolist()
        self.blocks: list[list[int]] = []
        self.queries: list[Tensor] = []
        for sequence in sequences:
            blocks = [free.pop() for _ in range(-(-sequence.length // BLOCK_TOKENS))]
            # Content depends on the sequence's own length alone, so it is the same in every batch.
            own = torch.Generator().manual_seed(sequence.length)
            self.blocks.append(blocks)
            size = (sequence.length, shape.kv_heads, shape.head_dim)
            keys, values = (torch.randn(size, generator=own).to(self.dtype) for _ in range(2))
            self.pool.store(0, self.slots(blocks, sequence.length), keys, values)
            rows = torch.randn((sequence.length, shape.heads, shape.head_dim), generator=own).to(self.dtype)
            self.queries.append(rows[-sequence.num_rows :])

    @staticmethod
    def slots(blocks: list[int], length: int) -> Tensor:
        positions = torch.arange(length)
        return torch.tensor(blocks)[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS

    def run(self, *, rows_each: int | None = None) -> list[Tensor]:
        """Each sequence's output [num_rows, heads, D]; tiles of `rows_each` rows (default: all that fit)."""
        shape = self.shape
        rows_each = rows_each or rows_per_tile(shape.heads // shape.kv_heads)
        tiles: list[tuple[int, int, int]] = []
        positions: list[int] = []
        first = 0
        for index, sequence in enumerate(self.sequences):
            positions += range(sequence.length - sequence.num_rows, sequence.length)
            tiles += [
                (first + start, min(rows_each, sequence.num_rows - start), index)
                for start in range(0, sequence.num_rows, rows_each)
            ]
            first += sequence.num_rows
        width = max(len(blocks) for blocks in self.blocks)
        tables = [blocks + [10**6] * (width - len(blocks)) for blocks in self.blocks]
        longest = max(sequence.length for sequence in self.sequences)
        rows = PagedRows(
            torch.tensor(positions, dtype=torch.int32),
            torch.tensor(tiles, dtype=torch.int32),
            torch.tensor(tables, dtype=torch.int32),
            splits_for(longest),
        )
        scale = shape.head_dim**-0.5
        kv = paged_kv(self.pool, 0)
        out = attend_paged(torch.cat(self.queries), kv, rows, scale, shape.window, shape.softcap)
        return list(torch.split(out, [sequence.num_rows for sequence in self.sequences]))

    def expected(self, index: int) -> Tensor:
        """The same in plain float32 attention over what the pool gives back."""
        shape, sequence = self.shape, self.sequences[index]
        keys, values = self.pool.load(0, self.slots(self.blocks[index], sequence.length))
        each = shape.heads // shape.kv_heads
        keys, values = (side.float().repeat_interleave(each, dim=1) for side in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", self.queries[index].float(), keys) * shape.head_dim**-0.5
        if shape.softcap:
            scores = shape.softcap * torch.tanh(scores / shape.softcap)
        query = torch.arange(sequence.length - sequence.num_rows, sequence.length)[:, None]
        key = torch.arange(sequence.length)[None, :]
        hidden = key > query
        if shape.window:
            hidden |= key <= query - shape.window
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values)
