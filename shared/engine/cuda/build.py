"""Makes the GPU backend from an engine's configuration."""

from __future__ import annotations

from dataclasses import replace

import torch

from shared.engine.cuda.device import check_device
from shared.engine.cuda.fp8_linear import to_fp8
from shared.engine.cuda.model import CudaModel
from shared.engine.cuda.weight_map import map_layer
from shared.engine.engine_config import EngineConfig
from shared.engine.loading.config import ModelConfig
from shared.engine.loading.layers import ModelWeights
from shared.engine.loading.weights import LoadProgress, WeightReader
from shared.engine.memory.kv_pool import KvPool


def build_cuda_model(
    config: EngineConfig,
    model_config: ModelConfig,
    pool: KvPool,
    max_model_len: int,
    on_loaded: LoadProgress | None,
) -> CudaModel:
    """Loads onto the GPU layer by layer and records the graphs. Raises InvalidRequest without a GPU."""
    check_device(config, model_config)
    weights = load_on_device(config, model_config, torch.device("cuda"), on_loaded)
    return CudaModel(
        model_config,
        weights,
        pool,
        max_model_len,
        graph_rows=config.max_sequences,
        deterministic=config.deterministic,
    )


def load_on_device(
    config: EngineConfig, model_config: ModelConfig, device: torch.device, on_loaded: LoadProgress | None
) -> ModelWeights:
    """Load all weights; with quantization fp8 matrices are rounded to it one layer at a time.

    The head stays as it is: its logits decide what is drawn.
    """
    in_fp8 = config.quantization == "fp8"
    reader = WeightReader(
        config.model_dir,
        model_config,
        device,
        quantization="none" if in_fp8 else config.quantization,
        quant_group=config.quant_group,
    )
    embedding = reader.embedding()
    weights = ModelWeights(embedding, (), reader.final_norm(), reader.head(embedding))
    layers = (map_layer(layer, to_fp8) if in_fp8 else layer for layer in reader.layers(on_loaded))
    return replace(weights, layers=tuple(layers))
