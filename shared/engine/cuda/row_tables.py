"""Turn a batch into the integers that one step of the GPU works on. Pure index work on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.engine.batch import Batch, Span
from shared.engine.memory.kv_pool import BLOCK_TOKENS

NO_SLOT = -1  # a padding row: nothing is stored, nothing is seen
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RowTable:
    """T rows, each with its own copy of its sequence's blocks in each of G groups of layers: every row is a
    decode row."""

    token_ids: Ints  # [T]
    positions: Ints  # [T]
    slots: Ints  # [G, T]; block * 16 + offset
    blocks: Ints  # [G, T, width]


def graph_sizes(max_rows: int) -> tuple[int, ...]:
    """The batch sizes that get a graph, ascending: powers of two, and `max_rows` itself."""
    sizes = [1 << power for power in range(max_rows.bit_length()) if 1 << power < max_rows]
    return (*sizes, max_rows)


def size_for(sizes: Sequence[int], num_rows: int) -> int | None:
    """The smallest of `sizes` that holds `num_rows`; None where none does."""
    return next((size for size in sizes if size >= num_rows), None)


def fill_rows(batch: Batch, into: RowTable) -> int:
    """Write the batch's T rows and make the rest of `into` padding; returns T.

    A span of several rows (drafts to verify, the tail of a prompt) becomes as many decode rows: all K and V
    of a step are stored before any row attends.
    """
    row = 0
    for span in batch.spans:
        end = row + span.num_rows
        positions = np.arange(span.start, span.end, dtype=np.int32)
        into.positions[row:end] = positions
        for group in range(len(into.slots)):
            blocks = span_blocks(span, group)
            into.slots[group, row:end] = slots_of(blocks, positions)
            into.blocks[group, row:end, : len(blocks)] = blocks
        row = end
    into.token_ids[:row] = batch.token_ids
    into.token_ids[row:] = 0
    into.positions[row:] = -1
    into.slots[:, row:] = NO_SLOT
    return row


def span_blocks(span: Span, group: int) -> Ints:
    """The blocks that the span's rows may see in a group of layers, in order."""
    return np.asarray(span.tables[group][: -(-span.end // BLOCK_TOKENS)], dtype=np.int32)


def slots_of(blocks: Ints, positions: Ints) -> Ints:
    slots: Ints = blocks[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
    return slots
