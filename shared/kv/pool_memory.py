"""A KV pool as plain bytes: memory [num_layers, num_blocks, layer_block_bytes], contiguous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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
    """Views of `memory`; neighbouring blocks come as one view, so that a read or write takes one call."""

    def __init__(self, memory: memoryview, num_layers: int, num_blocks: int, cell_bytes: int) -> None:
        if memory.nbytes != num_layers * num_blocks * cell_bytes:
            raise InvalidRequest(
                f"{memory.nbytes} bytes are not {num_layers} layers x {num_blocks} blocks "
                f"of {cell_bytes} bytes"
            )
        self._memory = memory
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

    def views(self, layer: int, blocks: Sequence[int]) -> list[memoryview]:
        """The bytes of `blocks` in `layer`, in order."""
        views: list[memoryview] = []
        first = 0
        for at in range(1, len(blocks) + 1):
            if at == len(blocks) or blocks[at] != blocks[at - 1] + 1:
                start = (layer * self.num_blocks + blocks[first]) * self.cell_bytes
                views.append(self._memory[start : start + (at - first) * self.cell_bytes])
                first = at
        return views

    def release(self) -> None:
        """Let go of the memory, so that it can be unmapped; no view can be made afterwards."""
        self._memory.release()


def copy_blocks(
    layer: int,
    source: PoolMemory,
    source_blocks: Sequence[int],
    target: PoolMemory,
    target_blocks: Sequence[int],
) -> None:
    """Copy whole blocks of one layer from pool to pool, in as few pieces as both allow."""
    first = 0
    for at in range(1, len(source_blocks) + 1):
        if (
            at == len(source_blocks)
            or source_blocks[at] != source_blocks[at - 1] + 1
            or target_blocks[at] != target_blocks[at - 1] + 1
        ):
            (destination,) = target.views(layer, target_blocks[first:at])
            (origin,) = source.views(layer, source_blocks[first:at])
            destination[:] = origin
            first = at
