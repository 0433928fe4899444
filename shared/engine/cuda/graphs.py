"""CUDA graphs for small batches: one per batch size, recorded once, replayed on the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from shared.engine.batch import Batch
from shared.engine.cuda.attention_kernel import splits_for
from shared.engine.cuda.paged import PagedRows
from shared.engine.cuda.row_tables import RowTable, fill_rows, graph_sizes, size_for
from shared.engine.cuda.step_plan import GroupStep, PagedGroup, StepTensors
from shared.engine.memory.kv_pool import BLOCK_TOKENS

_WARM_UP_RUNS = 2  # Triton compiles and cuBLAS takes its workspace outside of the recording


class Capture(Protocol):
    """Records a computation over static memory; calling what it returns computes again, into the result."""

    def __call__(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]: ...


class CudaCapture:
    """Records CUDA graphs that share one memory pool: only one of them runs at a time."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it without annotations
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_RUNS):
                compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            out = compute()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


def call_eagerly(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A `Capture` that records nothing, for devices without graphs."""
    return compute


class GraphRunner:
    """Runs batches of up to `max_rows` rows on static buffers, padded to the next recorded size.

    Every row is a decode row with its own table of blocks (see `fill_rows`), so prompts' short tails and
    drafts run here too. `compute` takes the step's tensors and gives logits [size, vocab].
    """

    def __init__(
        self,
        compute: Callable[[StepTensors], Tensor],
        capture: Capture,
        max_rows: int,
        max_model_len: int,
        num_groups: int,
        device: torch.device,
    ) -> None:
        """`num_groups`: of layers that have tables of their own."""
        self._sizes = graph_sizes(max_rows)
        width = -(-max_model_len // BLOCK_TOKENS)
        pinned = device.type == "cuda"
        # Rows of `fields`: token ids, positions, slots of each group. One copy each moves a step's integers.
        fields, blocks = (2 + num_groups, max_rows), (num_groups, max_rows, width)
        self._host_fields = torch.zeros(fields, dtype=torch.int32, pin_memory=pinned)
        self._host_blocks = torch.zeros(blocks, dtype=torch.int32, pin_memory=pinned)
        self._fields = torch.zeros(fields, dtype=torch.int32, device=device)
        self._blocks = torch.zeros(blocks, dtype=torch.int32, device=device)
        tiles = [(row, 1, row) for row in range(max_rows)]
        self._tiles = torch.tensor(tiles, dtype=torch.int32, device=device)
        self._num_splits = splits_for(max_model_len)
        self._fill(Batch((), (), ()), max_rows)  # recorded on padding alone: nothing is stored
        self._replays: dict[int, Callable[[], Tensor]] = {}
        for size in reversed(self._sizes):  # the largest first: the smaller ones fit into its memory
            step = self._step(size)
            self._replays[size] = capture(lambda step=step: compute(step))  # type: ignore[misc]  # mypy cannot infer a default argument

    def run(self, batch: Batch) -> Tensor | None:
        """Logits [R, vocab] in static memory that the next run overwrites; None: no graph is large enough."""
        num_rows = len(batch.token_ids)
        size = size_for(self._sizes, num_rows)
        if size is None:
            return None
        self._fill(batch, size)
        logits = self._replays[size]()
        if list(batch.logit_rows) == list(range(num_rows)):
            return logits[:num_rows]
        return logits[torch.tensor(batch.logit_rows, dtype=torch.int64, device=logits.device)]

    def _fill(self, batch: Batch, size: int) -> None:
        """The device is idle: the step before ended with a copy of its logits to the host."""
        fields, blocks = self._host_fields.numpy(), self._host_blocks.numpy()
        table = RowTable(fields[0, :size], fields[1, :size], fields[2:, :size], blocks[:, :size])
        fill_rows(batch, table)
        self._fields.copy_(self._host_fields, non_blocking=True)
        for device, host in zip(self._blocks, self._host_blocks, strict=True):
            device[:size].copy_(host[:size], non_blocking=True)

    def _step(self, size: int) -> StepTensors:
        token_ids, positions, *slots = self._fields[:, :size]
        groups = tuple(
            GroupStep(
                own,
                (
                    PagedGroup(
                        0, size, PagedRows(positions, self._tiles[:size], blocks[:size], self._num_splits)
                    ),
                ),
                (),
            )
            for own, blocks in zip(slots, self._blocks, strict=True)
        )
        return StepTensors(token_ids, positions, groups, None)
