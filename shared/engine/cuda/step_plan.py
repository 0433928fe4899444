"""One eager step on the GPU: which rows go through the paged kernel, which through flash attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shared.engine.batch import Batch, Span
from shared.engine.cuda.attention_kernel import splits_for
from shared.engine.cuda.paged import PagedRows
from shared.engine.cuda.row_tables import Ints, slots_of, span_blocks

PROMPT_ROWS = 17  # from this many rows on, a span gathers its keys and goes through flash attention alone
# The paged kernel takes at most so much for its splits in one call; tiles of prompts go piece by piece.
SCRATCH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class PagedGroup:
    """Consecutive computed rows that share one call of the paged kernel."""

    first_row: int
    num_rows: int
    rows: PagedRows


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """Consecutive computed rows of one sequence over its gathered keys."""

    first_row: int
    num_rows: int
    start: int
    key_slots: Tensor  # int64 [start + num_rows]


@dataclass(frozen=True, slots=True)
class GroupStep:
    """The places where the step's T rows write and read in the blocks of one group of layers."""

    slots: Tensor  # int32 [T]; -1: padding
    paged: Sequence[PagedGroup]  # the first rows
    prompts: Sequence[PromptSpan]  # all others


@dataclass(frozen=True, slots=True)
class StepTensors:
    """One forward pass: T rows in computed order (short spans first)."""

    token_ids: Tensor  # int32 [T]
    positions: Tensor  # int32 [T]; -1: padding
    groups: Sequence[GroupStep]  # of layers
    logit_rows: Tensor | None  # int64 [R]; None: all rows


@dataclass(frozen=True, slots=True)
class PagedShape:
    """The shape that the plan must know of the model to cut rows into calls and tiles."""

    rows_per_tile: int
    row_split_bytes: int  # scratch that one row takes for one split
    all_paged: bool  # prompts go through the paged kernel too


def plan_step(batch: Batch, shape: PagedShape, device: torch.device) -> StepTensors:
    """Order the rows and move all integers to the device."""
    order = sorted(range(len(batch.spans)), key=lambda index: batch.spans[index].num_rows >= PROMPT_ROWS)
    starts = np.cumsum([0, *(span.num_rows for span in batch.spans)])
    batch_rows = np.concatenate([np.arange(starts[index], starts[index + 1]) for index in order])
    computed_row = np.empty_like(batch_rows)
    computed_row[batch_rows] = np.arange(len(batch_rows))
    spans = [batch.spans[index] for index in order]
    positions = np.concatenate([np.arange(span.start, span.end, dtype=np.int32) for span in spans])
    device_positions = to_device(positions, device)
    return StepTensors(
        token_ids=to_device(np.asarray(batch.token_ids, dtype=np.int32)[batch_rows], device),
        positions=device_positions,
        groups=tuple(
            _group_step(spans, group, shape, device_positions) for group in range(len(spans[0].tables))
        ),
        logit_rows=to_device(computed_row[np.asarray(batch.logit_rows, dtype=np.int64)], device),
    )


def _group_step(spans: Sequence[Span], group: int, shape: PagedShape, positions: Tensor) -> GroupStep:
    num_paged = len(spans) if shape.all_paged else sum(span.num_rows < PROMPT_ROWS for span in spans)
    paged_rows = sum(span.num_rows for span in spans[:num_paged])
    slots = [
        slots_of(span_blocks(span, group), np.arange(span.start, span.end, dtype=np.int32)) for span in spans
    ]
    return GroupStep(
        slots=to_device(np.concatenate(slots), positions.device),
        paged=tuple(_paged_groups(spans[:num_paged], group, shape, positions)),
        prompts=tuple(_prompts(spans[num_paged:], group, paged_rows, positions.device)),
    )


def to_device(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], device: torch.device) -> Tensor:
    """A copy on `device`; from pinned memory, so that the host does not wait for it."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _paged_groups(
    spans: Sequence[Span], group: int, shape: PagedShape, positions: Tensor
) -> Iterator[PagedGroup]:
    """Tiles of all spans in order, as many per call as the scratch holds."""
    if not spans:
        return
    num_splits = splits_for(max(span.end for span in spans))
    most_rows = max(shape.rows_per_tile, SCRATCH_BYTES // (shape.row_split_bytes * num_splits))
    blocks = [span_blocks(span, group) for span in spans]
    table = np.zeros((len(spans), max(len(own) for own in blocks)), dtype=np.int32)
    for index, own in enumerate(blocks):
        table[index, : len(own)] = own
    tables = to_device(table, positions.device)
    first_row = num_rows = 0
    tiles: list[tuple[int, int, int]] = []
    for index, span in enumerate(spans):
        for start in range(0, span.num_rows, shape.rows_per_tile):
            rows = min(shape.rows_per_tile, span.num_rows - start)
            if num_rows + rows > most_rows:
                yield _paged_group(first_row, num_rows, tiles, positions, tables, num_splits)
                first_row, num_rows, tiles = first_row + num_rows, 0, []
            tiles.append((num_rows, rows, index))
            num_rows += rows
    yield _paged_group(first_row, num_rows, tiles, positions, tables, num_splits)


def _paged_group(
    first_row: int,
    num_rows: int,
    tiles: list[tuple[int, int, int]],
    positions: Tensor,
    tables: Tensor,
    num_splits: int,
) -> PagedGroup:
    own = positions[first_row : first_row + num_rows]
    tile_array: Ints = np.asarray(tiles, dtype=np.int32)
    return PagedGroup(
        first_row, num_rows, PagedRows(own, to_device(tile_array, tables.device), tables, num_splits)
    )


def _prompts(spans: Sequence[Span], group: int, first_row: int, device: torch.device) -> Iterator[PromptSpan]:
    for span in spans:
        blocks = span_blocks(span, group)
        key_slots = slots_of(blocks, np.arange(span.end, dtype=np.int32)).astype(np.int64)
        yield PromptSpan(first_row, span.num_rows, span.start, to_device(key_slots, device))
        first_row += span.num_rows
