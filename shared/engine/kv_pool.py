"""Storage of keys and values: one contiguous tensor, cut into 16-token blocks per layer."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch
import xxhash

from shared.errors import InvalidRequest
from shared.kv_hash import HASH_BLOCK_TOKENS

BLOCK_TOKENS = HASH_BLOCK_TOKENS
TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Everything that two workers must agree on before a KV byte moves between them."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str  # "float32" | "bfloat16"

    @property
    def layer_block_bytes(self) -> int:
        """Bytes of one block in one layer: 16 tokens of K, then 16 tokens of V."""
        return 2 * BLOCK_TOKENS * self.num_kv_heads * self.head_dim * _ITEM_BYTES[self.dtype]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers."""
        return self.num_layers * self.layer_block_bytes

    def fingerprint(self) -> str:
        """16 hex digits, equal exactly when the layouts are."""
        text = f"{self.num_layers}/{self.num_kv_heads}/{self.head_dim}/{self.dtype}/{BLOCK_TOKENS}"
        return str(xxhash.xxh3_64_hexdigest(text.encode()))


class KvPool:
    """The KV of all blocks: `data` is [num_layers, num_blocks, 2, 16, kv_heads, head_dim], contiguous.

    `buffer` is writable memory of exactly `nbytes` that becomes the storage (say, a mapped memfd that
    another process reads); without it the pool allocates its own. Either starts as zeros, or as what
    the buffer holds.
    """

    def __init__(self, layout: KvLayout, num_blocks: int, buffer: memoryview | None = None) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self.nbytes = num_blocks * layout.block_bytes
        shape = (layout.num_layers, num_blocks, 2, BLOCK_TOKENS, layout.num_kv_heads, layout.head_dim)
        dtype = TORCH_DTYPES[layout.dtype]
        if buffer is None:
            # Anonymous pages are zeros and take memory only once a block is used.
            buffer = memoryview(mmap.mmap(-1, self.nbytes))
        if buffer.readonly or buffer.nbytes != self.nbytes:
            raise InvalidRequest(
                f"the KV pool needs {self.nbytes} writable bytes, the buffer has {buffer.nbytes}"
                f"{' read-only' if buffer.readonly else ''}; map it read-write at that size"
            )
        self.data = torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).view(shape)
        # [num_layers, num_blocks * 32, kv_heads * head_dim]: row 32b + o is K at offset o of block b;
        # its V is 16 rows on.
        self.rows = self.data.view(layout.num_layers, num_blocks * 2 * BLOCK_TOKENS, -1)
        self._memory = self.data.view(-1).view(torch.uint8).numpy().data

    @property
    def memory(self) -> memoryview:
        """uint8 view of the whole pool: layer-major, then block."""
        return self._memory

    def block_view(self, layer: int, block: int) -> memoryview:
        """Writable uint8 view of exactly one (layer, block), `layer_block_bytes` long.

        Raises InvalidRequest when either index is outside the pool: indices may come from a wire.
        """
        if not (0 <= layer < self.layout.num_layers and 0 <= block < self.num_blocks):
            raise InvalidRequest(
                f"KV block ({layer}, {block}) is outside the pool of "
                f"{self.layout.num_layers} layers x {self.num_blocks} blocks"
            )
        size = self.layout.layer_block_bytes
        start = (layer * self.num_blocks + block) * size
        return self._memory[start : start + size]
