"""Storage of keys and values: one contiguous tensor, cut into 16-token blocks per layer."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b

import torch
from torch import Tensor

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.engine.dtypes import TORCH_DTYPES
from shared.engine.loading.config import ModelConfig
from shared.engine.loading.layer_groups import LayerGroups
from shared.engine.memory.pool_pages import PoolPages, shared_page_bytes
from shared.errors import InvalidRequest

BLOCK_TOKENS = HASH_BLOCK_TOKENS
_STORED_DTYPES = {**TORCH_DTYPES, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
_LARGEST_CODE = {"int8": 127.0, "fp8": 448.0}  # what the largest value of one token's head becomes
_SCALE_BYTES = 2


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Everything that two workers must agree on before a KV byte moves between them.

    One (layer, block): K [16, kv_heads, D], V [16, kv_heads, D], and for int8 and fp8 then K scales
    [16, kv_heads] and V scales [16, kv_heads], float16. With `latent` there are no V: values are the first
    dimensions of K. `content` stands for what the values depend on.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str  # "float32" | "bfloat16" | "int8" | "fp8"
    content: str = ""  # of `kv_content`: checkpoint and rotation
    layer_windows: tuple[int | None, ...] = ()  # as in `LayerGroups.of`; (): all layers see everything
    latent: bool = False  # of multi-head latent attention
    groups: LayerGroups = field(init=False, compare=False)
    block_bytes: int = field(init=False, compare=False)  # of one block, in all layers of its group
    _fingerprint: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        windows = self.layer_windows or (None,) * self.num_layers
        object.__setattr__(self, "groups", LayerGroups.of(windows))
        object.__setattr__(self, "block_bytes", self.groups.block_layers * self.layer_block_bytes)
        object.__setattr__(self, "_fingerprint", self._hashed())

    @classmethod
    def of(cls, model: ModelConfig, kv_dtype: str) -> KvLayout:
        """The layout of `model` with EngineConfig's `kv_dtype`: auto stores what the model computes in."""
        stored = model.dtype if kv_dtype == "auto" else kv_dtype
        return cls(
            model.num_layers,
            model.num_kv_heads,
            model.head_dim,
            stored,
            layer_windows=tuple(layer.window_tokens for layer in model.layers),
            latent=model.latent is not None,
        )

    @property
    def scaled(self) -> bool:
        """Stored as codes, with a scale for each token and head."""
        return self.dtype in _LARGEST_CODE

    @property
    def parts(self) -> int:
        """Return how many vectors a token and head have: K and V, or the one that is both."""
        return 1 if self.latent else 2

    @property
    def codes_bytes(self) -> int:
        """Bytes of K and V of one block in one layer, without scales."""
        items = self.parts * BLOCK_TOKENS * self.num_kv_heads * self.head_dim
        return items * _STORED_DTYPES[self.dtype].itemsize

    @property
    def layer_block_bytes(self) -> int:
        """Bytes of one block in one layer, scales included."""
        scales = self.parts * BLOCK_TOKENS * self.num_kv_heads * _SCALE_BYTES if self.scaled else 0
        return self.codes_bytes + scales

    def blocks_in(self, memory_mb: int) -> int:
        """Return how many blocks `memory_mb` MiB hold. Raises InvalidRequest when not even one fits."""
        blocks = (memory_mb << 20) // self.block_bytes
        if blocks == 0:
            raise InvalidRequest(
                f"kv_memory_mb is {memory_mb} and one KV block of this model takes {self.block_bytes} bytes; "
                "allow more"
            )
        return blocks

    def fingerprint(self) -> str:
        """32 hex digits, equal exactly when the layouts are."""
        return self._fingerprint

    def _hashed(self) -> str:
        shape = f"{self.num_layers}/{self.num_kv_heads}/{self.head_dim}/{self.dtype}/{BLOCK_TOKENS}"
        counts = self.groups.counts
        window = f"/{counts.window_tokens}" if counts.windowed else ""
        latent = "/latent" if self.latent else ""
        groups = f"/{self.groups.group_of}/{self.groups.row_of}" if counts.count > 1 else ""
        return blake2b(f"{shape}/{self.content}{window}{groups}{latent}".encode(), digest_size=16).hexdigest()


class KvPool:
    """The KV of all blocks: `data` is uint8 [block_layers, num_blocks, layer_block_bytes], contiguous; which
    row of it is whose says `LayerGroups`.

    `keys` and `values` [block_layers, num_blocks, 16, kv_heads, D] view it in the stored dtype;
    `key_scales` and `value_scales` [block_layers, num_blocks, 16, kv_heads] float16 exist for int8 and fp8.
    `buffer` is writable memory of exactly `nbytes` that becomes the storage (say, a mapped memfd that
    another process reads); without it the pool allocates its own. Either starts as zeros, or as what
    the buffer holds. Only memory of a shared mapping can be given back (`pages`). Values come out of `load`
    in `compute_dtype` (default: the stored one, float32 for codes).
    """

    def __init__(
        self,
        layout: KvLayout,
        num_blocks: int,
        buffer: memoryview | None = None,
        *,
        compute_dtype: torch.dtype | None = None,
        device: str = "cpu",
    ) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self.nbytes = num_blocks * layout.block_bytes
        self.compute_dtype = compute_dtype or TORCH_DTYPES.get(layout.dtype, torch.float32)
        flat = torch.zeros(self.nbytes, dtype=torch.uint8, device=device) if device != "cpu" else None
        if flat is None:
            flat = self._on_host(buffer)
        elif buffer is not None:
            raise InvalidRequest("KV in device memory cannot live in a caller's buffer; leave it out")
        self._row_of = layout.groups.row_of
        self.data = flat.view(layout.groups.block_layers, num_blocks, layout.layer_block_bytes)
        self._view_codes(flat)
        self._memory = flat.numpy().data if device == "cpu" else None

    def _on_host(self, buffer: memoryview | None) -> Tensor:
        if buffer is None:
            # Anonymous pages are zeros and take memory only once a block near them is used. In large pages
            # attention reads scattered blocks about twice as fast: it hardly ever misses the TLB.
            memory = mmap.mmap(-1, self.nbytes)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with suppress(OSError):  # a kernel without large pages: slower, not wrong
                    memory.madvise(mmap.MADV_HUGEPAGE)
            buffer = memoryview(memory)
        if buffer.readonly or buffer.nbytes != self.nbytes:
            raise InvalidRequest(
                f"the KV pool needs {self.nbytes} writable bytes, the buffer has {buffer.nbytes}"
                f"{' read-only' if buffer.readonly else ''}; map it read-write at that size"
            )
        return torch.frombuffer(buffer, dtype=torch.uint8)

    def _view_codes(self, flat: Tensor) -> None:
        layout, blocks = self.layout, self.num_blocks
        dtype = _STORED_DTYPES[layout.dtype]
        num_rows = layout.groups.block_layers
        shape = (num_rows, blocks, layout.parts, BLOCK_TOKENS, layout.num_kv_heads, layout.head_dim)
        block_items = layout.layer_block_bytes // dtype.itemsize
        inner = layout.num_kv_heads * layout.head_dim
        steps = (blocks * block_items, block_items, BLOCK_TOKENS * inner, inner, layout.head_dim, 1)
        codes = torch.as_strided(flat.view(dtype), shape, steps)
        self.keys, self.values = codes[:, :, 0], codes[:, :, -1]
        self.key_scales: Tensor | None = None
        self.value_scales: Tensor | None = None
        if layout.scaled:
            block_scales = layout.layer_block_bytes // _SCALE_BYTES
            heads = layout.num_kv_heads
            scales = torch.as_strided(
                flat.view(torch.float16),
                shape[:-1],
                (blocks * block_scales, block_scales, BLOCK_TOKENS * heads, heads, 1),
                layout.codes_bytes // _SCALE_BYTES,
            )
            self.key_scales, self.value_scales = scales[:, :, 0], scales[:, :, -1]
        else:
            # [block_layers, num_blocks * 32, kv_heads * head_dim]: row 32b + o is K at offset o of block b;
            # its V is 16 rows on. Where values are in the keys: num_blocks * 16, row 16b + o.
            self._rows = codes.view(num_rows, blocks * layout.parts * BLOCK_TOKENS, -1)

    # --- tokens ---

    def store(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor | None) -> None:
        """Write `keys` and `values` [T, kv_heads, D] into `slots` [T] int64 (block * 16 + offset); `values`
        is None exactly where the layout is latent.

        int8 and fp8: scale = max |x| of a token's head / 127 (448), rounded to float16;
        code = round(x / scale), half to even.
        """
        at = self._row_of[layer]
        if not self.layout.scaled:
            rows, stored = self._key_rows(slots), keys.flatten(1)
            if values is not None:
                rows = torch.cat((rows, rows + BLOCK_TOKENS))
                stored = torch.cat((stored, values.flatten(1)))
            self._rows[at].index_copy_(0, rows, stored.to(self._rows.dtype))
            return
        assert self.key_scales is not None
        assert self.value_scales is not None
        blocks, offsets = slots // BLOCK_TOKENS, slots % BLOCK_TOKENS
        for codes, scales, source in (
            (self.keys, self.key_scales, keys),
            (self.values, self.value_scales, values),
        ):
            if source is None:
                continue
            code, scale = _encode(source, self.layout.dtype)
            # Written as bytes: not every dtype of codes can be indexed on every device.
            codes[at].view(torch.uint8)[blocks, offsets] = code.view(torch.uint8)
            scales[at][blocks, offsets] = scale

    def load(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """K and V [..., kv_heads, D] of `slots` [...] int64, in the compute dtype; of a latent layout V is
        K, of which the first dimensions count."""
        at = self._row_of[layer]
        if not self.layout.scaled:
            rows = self._key_rows(slots.reshape(-1))
            shape = (*slots.shape, self.layout.num_kv_heads, self.layout.head_dim)
            layer_rows = self._rows[at]
            keys = layer_rows.index_select(0, rows).view(shape).to(self.compute_dtype)
            if self.layout.latent:
                return keys, keys
            values = layer_rows.index_select(0, rows + BLOCK_TOKENS)
            return keys, values.view(shape).to(self.compute_dtype)
        assert self.key_scales is not None
        assert self.value_scales is not None
        blocks, offsets = slots // BLOCK_TOKENS, slots % BLOCK_TOKENS
        loaded = []
        both = ((self.keys, self.key_scales), (self.values, self.value_scales))
        for codes, scales in both[: self.layout.parts]:
            code = codes[at].view(torch.uint8)[blocks, offsets].view(codes.dtype)
            scale = scales[at][blocks, offsets].float()
            loaded.append((code.float() * scale[..., None]).to(self.compute_dtype))
        return loaded[0], loaded[-1]

    def _key_rows(self, slots: Tensor) -> Tensor:
        """The row of `_rows` where K of each slot is: 16 rows of V, if any, follow every 16 rows of K."""
        return slots + (slots // BLOCK_TOKENS) * (BLOCK_TOKENS * (self.layout.parts - 1))

    # --- blocks ---

    def copy_block(self, source: int, target: int) -> None:
        """Make block `target` hold what `source` holds."""
        self.data[:, target] = self.data[:, source]

    def read(self, blocks: Sequence[int]) -> Tensor:
        """A copy of `blocks`: uint8 [block_layers, len(blocks), layer_block_bytes] on the CPU."""
        return self.data.index_select(1, torch.tensor(blocks, device=self.data.device)).cpu()

    def write(self, blocks: Sequence[int], content: Tensor) -> None:
        """Put back what `read` gave for as many blocks."""
        places = torch.tensor(blocks, device=self.data.device)
        self.data.index_copy_(1, places, content.to(self.data.device))

    def pages(self) -> PoolPages | None:
        """The pages that blocks lie on, which the system may have back; None where not all that a block takes
        is memory of this process."""
        layout = self.layout
        row_bytes = self.num_blocks * layout.layer_block_bytes
        return PoolPages(
            self.data.data_ptr(),
            self.nbytes // row_bytes,
            self.num_blocks,
            layout.layer_block_bytes,
            shared_page_bytes(),
        )

    def take_in(self, blocks: Sequence[int]) -> None:
        """Content of `blocks` was written through `memory` and is complete. Here that is all; a pool whose
        `memory` is not what the model reads brings it there."""

    def bring_out(self, blocks: Sequence[int]) -> None:
        """Let `memory` show what was computed in `blocks`. Here it does; a pool whose `memory` is not what
        the model writes copies it there."""

    @property
    def memory(self) -> memoryview:
        """uint8 view of the whole pool: row by row, then block. Raises InvalidRequest on a GPU."""
        if self._memory is None:
            raise InvalidRequest("the KV pool is in device memory and cannot be viewed; run on the CPU")
        return self._memory

    def block_view(self, layer: int, block: int) -> memoryview:
        """Writable uint8 view of one layer of a block of its group, `layer_block_bytes` long.

        Raises InvalidRequest when either index is outside the pool: indices may come from a wire.
        """
        if not (0 <= layer < self.layout.num_layers and 0 <= block < self.num_blocks):
            raise InvalidRequest(
                f"KV block ({layer}, {block}) is outside the pool of "
                f"{self.layout.num_layers} layers x {self.num_blocks} blocks"
            )
        size = self.layout.layer_block_bytes
        start = (self._row_of[layer] * self.num_blocks + block) * size
        return self.memory[start : start + size]


def _encode(source: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    """Codes [T, kv_heads, D] and their scales [T, kv_heads] float16."""
    largest = _LARGEST_CODE[dtype]
    wide = source.float()
    scale = (wide.abs().amax(-1) / largest).to(torch.float16)
    # A head of zeros (or one too small for a float16 scale) has scale 0 and must come out as zeros.
    divisor = scale.float().masked_fill(scale == 0, torch.inf)
    code = (wide / divisor[..., None]).clamp(-largest, largest)
    return (code.round() if dtype == "int8" else code).to(_STORED_DTYPES[dtype]), scale
