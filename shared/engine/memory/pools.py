"""Which KvPool an engine has: in host memory, in a GPU's, or one share of it in each of several processes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from shared.engine.engine_config import EngineConfig
from shared.engine.loading.config import ModelConfig
from shared.engine.memory.kv_pool import TORCH_DTYPES, KvLayout, KvPool
from shared.errors import InvalidRequest


def build_pool(
    config: EngineConfig, model_config: ModelConfig, pool_buffer: Callable[[int], memoryview] | None
) -> KvPool:
    """A pool of `kv_memory_mb`, or of `kv_blocks`, with the memory that `pool_buffer(nbytes)` supplies.

    Raises InvalidRequest when the machine has no GPU for device cuda, when not one block fits, or when memory
    is supplied for KV that no single process has.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest("torch finds no GPU on this machine; use device cpu")
    compute_dtype = TORCH_DTYPES[model_config.dtype]
    if config.tensor_parallel > 1:
        # Loaded only where it is used, as is the GPU's.
        from shared.engine.tensor_parallel.parallel_model import (  # noqa: PLC0415
            NO_TRANSFER,
            ParallelKvPool,
            parallel_layout,
        )

        if pool_buffer is not None:
            raise InvalidRequest(NO_TRANSFER)
        layout = parallel_layout(model_config, config)
        blocks = _num_blocks(config, layout)
        return ParallelKvPool(layout, blocks, compute_dtype=compute_dtype, device=config.device)
    layout = KvLayout.of(model_config, config.kv_dtype)
    blocks = _num_blocks(config, layout)
    buffer = pool_buffer(blocks * layout.block_bytes) if pool_buffer is not None else None
    if config.device == "cpu":
        return KvPool(layout, blocks, buffer, compute_dtype=compute_dtype)
    from shared.engine.cuda.kv_pool import MirroredKvPool  # noqa: PLC0415

    return MirroredKvPool(layout, blocks, buffer, compute_dtype=compute_dtype, device=config.device)


def _num_blocks(config: EngineConfig, layout: KvLayout) -> int:
    return layout.blocks_in(config.kv_memory_mb) if config.kv_memory_mb else config.kv_blocks
