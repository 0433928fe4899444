"""Choose where an engine's KV lies and which arithmetic computes its model."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import torch

from shared.engine.batch import Model
from shared.engine.dtypes import TORCH_DTYPES
from shared.engine.engine_config import EngineConfig
from shared.engine.loading.config import ModelConfig
from shared.engine.loading.gguf.second_rounding import warn_of_second_rounding
from shared.engine.loading.heap import large_blocks_given_back
from shared.engine.loading.model_parts import first_part, refuse_parts
from shared.engine.loading.weights import LoadProgress, WeightReader, load_weights
from shared.engine.memory.kv_content import kv_content
from shared.engine.memory.kv_pool import KvLayout, KvPool
from shared.engine.native.library import NativeName, library, native_name, why_no_library
from shared.engine.native.model import NativeModel
from shared.engine.native.packing import PackedPart, packed_parts
from shared.engine.native.weight_cache import WeightCache, most_parts, weights_key
from shared.engine.numa import interleaved, memory_nodes
from shared.engine.torch_backend.model import TorchModel
from shared.errors import InvalidRequest

MakeModel = Callable[[EngineConfig, ModelConfig, KvPool, int, LoadProgress | None], Model]
"""(config, model, pool, longest sequence, what hears of each layer): a model with its KV in the pool."""

BackendName = NativeName | Literal["torch", "cuda", "tensor_parallel"]

_NO_KERNELS = ("multi-head latent attention",)
"""Parts of models that the compiled kernels do not compute, and torch does."""


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
        layout = replace(layout, content=kv_content(config, model_config, blocks))
        return ParallelKvPool(layout, blocks, compute_dtype=compute_dtype, device=config.device)
    layout = KvLayout.of(model_config, config.kv_dtype)
    blocks = _num_blocks(config, layout)
    layout = replace(layout, content=kv_content(config, model_config, blocks))
    try:
        buffer = pool_buffer(blocks * layout.block_bytes) if pool_buffer is not None else None
        if config.device == "cpu":
            return KvPool(layout, blocks, buffer, compute_dtype=compute_dtype)
    except (MemoryError, OverflowError, OSError) as error:
        raise InvalidRequest(
            f"this machine has no memory for {blocks} KV blocks of {layout.block_bytes} bytes; "
            "lower kv_blocks or kv_memory_mb"
        ) from error
    from shared.engine.cuda.kv_pool import MirroredKvPool  # noqa: PLC0415

    return MirroredKvPool(layout, blocks, buffer, compute_dtype=compute_dtype, device=config.device)


def is_native(config: EngineConfig, model: ModelConfig) -> bool:
    """Return whether the compiled kernels compute this, whose number of threads may change at any time."""
    return config.device == "cpu" and config.tensor_parallel == 1 and _kernels(config, model) is not None


def backend_name(config: EngineConfig, model: ModelConfig) -> BackendName:
    """Return which of them computes what `config` says, on this machine."""
    if config.tensor_parallel > 1:
        return "tensor_parallel"
    if config.device == "cuda":
        return "cuda"
    if not is_native(config, model):
        return "torch"
    return native_name()


def why_not_native(config: EngineConfig, model: ModelConfig) -> str:
    """Why torch computes where the kernels were wanted, as a part of a sentence; else empty."""
    if config.device != "cpu" or config.tensor_parallel > 1 or config.backend != "auto":
        return ""
    part = first_part(model, _NO_KERNELS)
    return why_no_library() if part is None else f"the kernels do not compute {part}"


def build_model(
    config: EngineConfig,
    model_config: ModelConfig,
    pool: KvPool,
    max_model_len: int,
    on_loaded: LoadProgress | None,
) -> Model:
    """A model that reads and writes KV in `pool`. `on_loaded` is told of every layer read.

    backend auto takes the compiled kernels where there are any for this CPU, else torch.
    """
    warn_of_second_rounding(config.model_dir, config.quantization)
    if config.tensor_parallel > 1:
        # Both of these need what a plain CPU engine must not load: process groups, Triton.
        from shared.engine.tensor_parallel.parallel_model import ParallelKvPool, ParallelModel  # noqa: PLC0415

        assert isinstance(pool, ParallelKvPool)
        return ParallelModel(config, model_config, pool, max_model_len, on_loaded)
    if config.device == "cuda":
        from shared.engine.cuda.build import build_cuda_model  # noqa: PLC0415

        return build_cuda_model(config, model_config, pool, max_model_len, on_loaded)
    kernels = _kernels(config, model_config)
    if kernels is not None:
        with large_blocks_given_back(), interleaved(memory_nodes()):
            return _native(kernels, config, model_config, pool, max_model_len, on_loaded)
    weights = load_weights(
        config.model_dir,
        model_config,
        torch.device(config.device),
        on_loaded,
        quantization=config.quantization,
        quant_group=config.quant_group,
    )
    return TorchModel(model_config, weights, pool, max_model_len, deterministic=config.deterministic)


def _num_blocks(config: EngineConfig, layout: KvLayout) -> int:
    """Return the number of blocks of one group each: what `kv_blocks` says is for all layers."""
    if config.kv_memory_mb:
        return layout.blocks_in(config.kv_memory_mb)
    return config.kv_blocks * layout.groups.count


def _kernels(config: EngineConfig, model: ModelConfig) -> ctypes.CDLL | None:
    if config.backend == "native":
        refuse_parts(model, _NO_KERNELS, "the native backend", "use backend torch")
    if config.backend == "torch" or first_part(model, _NO_KERNELS) is not None:
        return None
    kernels = library()
    if kernels is None and config.backend == "native":
        raise InvalidRequest(
            f"the native backend cannot run here: {why_no_library()}; "
            "install a C++ compiler and run `make setup` again, or use backend torch"
        )
    return kernels


def _native(
    kernels: ctypes.CDLL,
    config: EngineConfig,
    model_config: ModelConfig,
    pool: KvPool,
    max_model_len: int,
    on_loaded: LoadProgress | None,
) -> NativeModel:
    def pack() -> Iterator[tuple[str, PackedPart]]:
        reader = WeightReader(
            config.model_dir,
            model_config,
            torch.device("cpu"),
            quantization=config.quantization,
            quant_group=config.quant_group,
        )
        embedding = reader.embedding()
        return packed_parts(
            kernels,
            model_config,
            reader.layers(on_loaded),
            embedding=None if model_config.tie_word_embeddings else embedding,
            head=reader.head(embedding),
            final_norm=reader.final_norm(),
        )

    cache = WeightCache.of(config.weight_cache_dir, config.weight_cache_mb)
    cached = None
    if cache is not None:
        cached = cache.load(kernels, weights_key(config, model_config), most_parts(model_config), pack)
    return NativeModel(
        kernels,
        model_config,
        dict(pack()) if cached is None else cached,
        pool=pool,
        num_positions=max_model_len,
        threads=config.threads,
    )
