"""KV in device memory with a mirror in host memory, through which other processes read and write it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shared.engine.memory.kv_pool import KvLayout, KvPool


class MirroredKvPool(KvPool):
    """`memory` and `block_view` are the mirror, of the pool's own layout; the model works on the device.

    What arrives from outside is written to the mirror and then taken in (`take_in`). With a `buffer` somebody
    outside reads the mirror, so the model publishes every block that it writes before anyone hears of it
    (`publish`). The mirror takes host memory only where blocks passed through it.
    """

    def __init__(
        self,
        layout: KvLayout,
        num_blocks: int,
        buffer: memoryview | None = None,
        *,
        compute_dtype: torch.dtype | None = None,
        device: str = "cuda",
    ) -> None:
        super().__init__(layout, num_blocks, None, compute_dtype=compute_dtype, device=device)
        self.publishes = buffer is not None
        mirror = self._on_host(buffer)
        self._mirror = mirror.view(self.data.shape)
        self._memory = mirror.numpy().data

    def publish(self, layer: int, blocks: Sequence[int]) -> None:
        """Bring the device's content of one layer, in `blocks` of its group, to the mirror; done when it
        returns."""
        index = torch.tensor(blocks, dtype=torch.int64)
        row = self._row_of[layer]
        self._mirror[row].index_copy_(
            0, index, self.data[row].index_select(0, index.to(self.data.device)).cpu()
        )

    def pages(self) -> None:
        """Return None: blocks lie in memory of the device, and are not given up for that of their mirror."""

    def take_in(self, blocks: Sequence[int]) -> None:
        """Bring the mirror's content of `blocks` to the device."""
        index = torch.tensor(blocks, dtype=torch.int64)
        arrived = self._mirror.index_select(1, index).to(self.data.device)
        self.data.index_copy_(1, index.to(self.data.device), arrived)

    def bring_out(self, blocks: Sequence[int]) -> None:
        """Bring the device's content of `blocks` to the mirror; done when it returns."""
        index = torch.tensor(blocks, dtype=torch.int64)
        computed = self.data.index_select(1, index.to(self.data.device))
        self._mirror.index_copy_(1, index, computed.cpu())

    def write(self, blocks: Sequence[int], content: Tensor) -> None:
        super().write(blocks, content)
        if self.publishes:
            self._mirror[:, list(blocks)] = content.cpu()

    def copy_block(self, source: int, target: int) -> None:
        super().copy_block(source, target)
        self._mirror[:, target] = self._mirror[:, source]
