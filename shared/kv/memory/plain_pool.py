"""A pool of bytes alone, without an engine: for measuring transfers by themselves."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

from shared.engine.loading.layer_groups import LayerGroups


@dataclass(frozen=True, slots=True)
class PlainLayout:
    """The shape of a plain pool; without `windows` no layer has one."""

    num_layers: int
    layer_block_bytes: int
    windows: tuple[int | None, ...] = ()

    @property
    def groups(self) -> LayerGroups:
        return LayerGroups.of(self.windows or (None,) * self.num_layers)

    def fingerprint(self) -> str:
        return f"{self.num_layers}/{self.layer_block_bytes}/{self.windows}"


class PlainPool:
    """Blocks in a buffer, or in memory of its own."""

    def __init__(self, layout: PlainLayout, num_blocks: int, buffer: memoryview | None = None) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        nbytes = layout.groups.block_layers * num_blocks * layout.layer_block_bytes
        self.memory = buffer if buffer is not None else memoryview(mmap.mmap(-1, nbytes))
        assert self.memory.nbytes == nbytes

    def cells(self, block: int) -> bytes:
        """Return all layers of one block."""
        size, layers = self.layout.layer_block_bytes, self.layout.groups.block_layers
        starts = [(layer * self.num_blocks + block) * size for layer in range(layers)]
        return b"".join(bytes(self.memory[start : start + size]) for start in starts)
