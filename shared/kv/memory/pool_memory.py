"""A KV pool as plain bytes: memory [block_layers, num_blocks, layer_block_bytes], contiguous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from shared.engine.loading.layer_groups import LayerGroups
from shared.errors import InvalidRequest
from shared.kv.memory.cell_copy import Cells, copy_cells, hash_cells


class Layout(Protocol):
    """The part of shared.engine.KvLayout that a transfer needs."""

    @property
    def groups(self) -> LayerGroups: ...
    @property
    def layer_block_bytes(self) -> int: ...
    def fingerprint(self) -> str: ...


class Pool(Protocol):
    """The part of shared.engine.KvPool that a transfer needs."""

    @property
    def layout(self) -> Layout: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def memory(self) -> memoryview: ...


class PoolMemory:
    """Reads and writes one layer of blocks of its group, as few calls as their places allow."""

    def __init__(self, memory: memoryview, groups: LayerGroups, num_blocks: int, cell_bytes: int) -> None:
        if memory.nbytes != groups.block_layers * num_blocks * cell_bytes:
            raise InvalidRequest(
                f"{memory.nbytes} bytes are not {groups.block_layers} layers x {num_blocks} blocks "
                f"of {cell_bytes} bytes"
            )
        self._memory = memory
        self._rows = np.frombuffer(memory, np.uint8).reshape(groups.block_layers, num_blocks, cell_bytes)
        self.groups = groups
        self.num_blocks = num_blocks
        self.cell_bytes = cell_bytes

    @classmethod
    def of(cls, pool: Pool) -> PoolMemory:
        layout = pool.layout
        return cls(pool.memory, layout.groups, pool.num_blocks, layout.layer_block_bytes)

    def check_blocks(self, blocks: Sequence[int]) -> None:
        """Raise InvalidRequest unless these are blocks of the pool: ids may come from a wire."""
        if blocks and (min(blocks) < 0 or max(blocks) >= self.num_blocks):
            raise InvalidRequest(
                f"blocks {min(blocks)}..{max(blocks)} are not in a pool of {self.num_blocks} blocks"
            )

    def neighbours(self, layer: int, blocks: Sequence[int]) -> memoryview | None:
        """The bytes of `blocks` in `layer`, where they lie one behind the other; else None."""
        first, count = blocks[0], len(blocks)
        if blocks[-1] - first != count - 1 or tuple(blocks) != tuple(range(first, first + count)):
            return None
        start = (self.groups.row_of[layer] * self.num_blocks + first) * self.cell_bytes
        return self._memory[start : start + count * self.cell_bytes]

    def read(self, layer: int, blocks: Sequence[int]) -> memoryview:
        """The bytes of `blocks` in `layer`, in order: the own ones where they are neighbours, else a copy."""
        view = self.neighbours(layer, blocks)
        if view is None:
            cells = np.empty((len(blocks), self.cell_bytes), np.uint8)
            copy_cells(self._layer(layer), blocks, cells, range(len(blocks)))
            view = cells.reshape(-1).data
        return view

    def write(self, layer: int, blocks: Sequence[int], data: memoryview) -> None:
        """Put `data` where `blocks`, no two of them the same, lie in `layer`."""
        cells = np.frombuffer(data, np.uint8).reshape(len(blocks), self.cell_bytes)
        copy_cells(cells, range(len(blocks)), self._layer(layer), blocks, streamed=True)

    def checksum(self, layer: int, blocks: Sequence[int]) -> int:
        """Return the checksum of the bytes of `blocks` in `layer`, in order."""
        return hash_cells(self._layer(layer), blocks)

    def copy_from(self, other: PoolMemory, layer: int, theirs: Sequence[int], ours: Sequence[int]) -> int:
        """Copy blocks of another pool's `layer` into the same layer here; the checksum of what was copied."""
        return copy_cells(other._layer(layer), theirs, self._layer(layer), ours, streamed=True)

    def release(self) -> None:
        """Let go of the memory, so that it can be unmapped; no view can be made afterwards."""
        del self._rows
        self._memory.release()

    def _layer(self, layer: int) -> Cells:
        """[blocks, bytes of a cell]: what that layer has of every block, were it its group's."""
        row: Cells = self._rows[self.groups.row_of[layer]]
        return row
