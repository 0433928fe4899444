"""A KV pool as plain bytes: memory [num_layers, num_blocks, layer_block_bytes], contiguous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from shared.errors import InvalidRequest


class Layout(Protocol):
    """The part of shared.engine.KvLayout that a transfer needs."""

    @property
    def num_layers(self) -> int: ...
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
    """Reads and writes whole blocks of one layer, as few calls as their places allow."""

    def __init__(self, memory: memoryview, num_layers: int, num_blocks: int, cell_bytes: int) -> None:
        if memory.nbytes != num_layers * num_blocks * cell_bytes:
            raise InvalidRequest(
                f"{memory.nbytes} bytes are not {num_layers} layers x {num_blocks} blocks "
                f"of {cell_bytes} bytes"
            )
        self._memory = memory
        self._layers = np.frombuffer(memory, np.uint8).reshape(num_layers, num_blocks, cell_bytes)
        self.num_layers = num_layers
        self.num_blocks = num_blocks
        self.cell_bytes = cell_bytes

    @classmethod
    def of(cls, pool: Pool) -> PoolMemory:
        layout = pool.layout
        return cls(pool.memory, layout.num_layers, pool.num_blocks, layout.layer_block_bytes)

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
        start = (layer * self.num_blocks + first) * self.cell_bytes
        return self._memory[start : start + count * self.cell_bytes]

    def read(self, layer: int, blocks: Sequence[int]) -> memoryview:
        """The bytes of `blocks` in `layer`, in order: the own ones where they are neighbours, else a copy."""
        view = self.neighbours(layer, blocks)
        if view is None:
            view = np.empty(len(blocks) * self.cell_bytes, np.uint8).data
            self.copy(layer, blocks, view)
        return view

    def copy(self, layer: int, blocks: Sequence[int], target: memoryview) -> None:
        """The bytes of `blocks` in `layer`, in order, into `target`."""
        cells = np.frombuffer(target, np.uint8).reshape(len(blocks), self.cell_bytes)
        # Blocks were checked; "clip" spares numpy a second copy for the case that they were not.
        np.take(self._layers[layer], blocks, axis=0, out=cells, mode="clip")

    def write(self, layer: int, blocks: Sequence[int], data: memoryview) -> None:
        """Put `data` where `blocks`, no two of them the same, lie in `layer`."""
        cells = np.frombuffer(data, np.uint8).reshape(len(blocks), self.cell_bytes)
        self._layers[layer][np.array(blocks)] = cells

    def release(self) -> None:
        """Let go of the memory, so that it can be unmapped; no view can be made afterwards."""
        del self._layers
        self._memory.release()
