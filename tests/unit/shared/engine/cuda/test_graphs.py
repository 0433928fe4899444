"""The host's part of the graphs: which one, what it is filled with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from shared.engine.batch import Batch, Span
from shared.engine.block_table import NO_BLOCK
from shared.engine.cuda.graphs import GraphRunner, call_eagerly
from shared.engine.cuda.row_tables import RowTable, fill_rows, graph_sizes, size_for
from shared.engine.cuda.step_plan import StepTensors


@pytest.mark.parametrize(
    ("max_rows", "sizes"),
    [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8)), (9, (1, 2, 4, 8, 9))],
)
def test_graph_sizes_are_powers_of_two_and_the_largest_batch(max_rows: int, sizes: tuple[int, ...]) -> None:
    assert graph_sizes(max_rows) == sizes


def test_the_smallest_graph_that_holds_the_rows_is_chosen() -> None:
    assert [size_for((1, 2, 4, 6), rows) for rows in (1, 3, 4, 5, 6, 7)] == [1, 4, 4, 6, 6, None]


def empty_table(size: int, width: int, groups: int = 1) -> RowTable:
    token_ids, positions = (np.full(size, 77, dtype=np.int32) for _ in range(2))
    slots = np.full((groups, size), 77, dtype=np.int32)
    return RowTable(token_ids, positions, slots, np.zeros((groups, size, width), dtype=np.int32))


def test_every_row_gets_its_token_position_slot_and_its_sequences_blocks() -> None:
    table = empty_table(4, 3)
    batch = Batch([11, 12, 13], [Span(17, 1, [[5, 9]]), Span(15, 2, [[2, 8, 1]])], [0, 2])
    assert fill_rows(batch, table) == 3
    assert table.token_ids[:3].tolist() == [11, 12, 13]
    assert table.positions[:3].tolist() == [17, 15, 16]
    assert table.slots[0, :3].tolist() == [9 * 16 + 1, 2 * 16 + 15, 8 * 16]
    assert table.blocks[0, :3, :2].tolist() == [[5, 9], [2, 8], [2, 8]]


def test_every_group_of_layers_has_slots_and_blocks_of_its_own() -> None:
    table = empty_table(2, 3, groups=2)
    assert fill_rows(Batch([11], [Span(17, 1, [[5, 9], [NO_BLOCK, 4]])], [0]), table) == 1
    assert table.slots.tolist() == [[9 * 16 + 1, -1], [4 * 16 + 1, -1]]
    assert table.blocks[:, 0, :2].tolist() == [[5, 9], [NO_BLOCK, 4]]


def test_rows_beyond_the_batch_are_padding_that_stores_and_sees_nothing() -> None:
    table = empty_table(4, 3)
    fill_rows(Batch([11], [Span(0, 1, [[5]])], [0]), table)
    assert table.positions[1:].tolist() == [-1, -1, -1]
    assert table.slots[0, 1:].tolist() == [-1, -1, -1]
    assert table.token_ids[1:].tolist() == [0, 0, 0]


class Recorder:
    """Stands for the model: logits [size, 2] of position and token, and the sizes it was called with."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, step: StepTensors) -> Tensor:
        self.sizes.append(len(step.token_ids))
        return torch.stack((step.positions, step.token_ids), dim=1).float()


def runner(recorder: Recorder) -> GraphRunner:
    return GraphRunner(recorder, call_eagerly, 4, 64, 1, torch.device("cpu"))


def test_a_batch_runs_padded_to_the_next_size_and_gives_the_rows_asked_for() -> None:
    recorder = Recorder()
    batch = Batch([11, 12, 13], [Span(17, 1, [[5, 9]]), Span(15, 2, [[2, 8, 1]])], [0, 2])
    logits = runner(recorder).run(batch)
    assert recorder.sizes == [4]
    assert logits is not None
    assert logits.tolist() == [[17, 11], [16, 13]]


def test_a_smaller_batch_after_a_larger_one_sees_nothing_of_it() -> None:
    graphs = runner(Recorder())
    graphs.run(Batch([11, 12, 13], [Span(0, 3, [[5]])], [0, 1, 2]))
    logits = graphs.run(Batch([9], [Span(4, 1, [[6]])], [0]))
    assert logits is not None
    assert logits.tolist() == [[4, 9]]


def test_a_batch_above_the_largest_graph_is_left_to_the_caller() -> None:
    assert runner(Recorder()).run(Batch(range(5), [Span(0, 5, [[3]])], [4])) is None


def test_capture_is_asked_once_per_size_the_largest_first() -> None:
    recorder = Recorder()

    def capture(compute):  # type: ignore[no-untyped-def]  # a Capture that runs what it records at once
        compute()
        return compute

    GraphRunner(recorder, capture, 5, 64, 1, torch.device("cpu"))
    assert recorder.sizes == [5, 4, 2, 1]
