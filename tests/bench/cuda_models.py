"""Llama shapes with random weights, made where they are needed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shared.engine.cuda.weight_map import map_linears
from shared.engine.dtypes import TORCH_DTYPES
from shared.engine.loading.config import LayerConfig, ModelConfig, RopeConfig
from shared.engine.loading.layers import DenseMlp, LayerWeights, ModelWeights
from shared.engine.loading.linear import DenseLinear
from shared.engine.memory.kv_pool import KvLayout, KvPool


@dataclass(frozen=True)
class Shape:
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocab: int
    prompts: tuple[int, ...]
    batch: int
    context: int  # tokens that decode rows already have
    copy_mb: int
    product_side: int


LLAMA_8B = Shape(4096, 14336, 32, 8, 128, 32, 128256, (2048, 8192), 64, 1024, 4096, 8192)
REHEARSAL = Shape(64, 96, 4, 2, 16, 2, 101, (18, 20), 3, 4, 1, 64)
CHECK = replace(LLAMA_8B, hidden=1024, inner=2816, heads=16, kv_heads=4, head_dim=64, layers=4, vocab=32000)


def model_config(shape: Shape, dtype: str) -> ModelConfig:
    rope = RopeConfig(
        theta=500000.0,
        rotary_dim=shape.head_dim,
        kind="llama3",
        factor=8.0,
        original_max_position_tokens=8192,
    )
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rms_norm_eps=1e-5,
        layers=(LayerConfig(rope),) * shape.layers,
        max_position_embeddings=131072,
        tie_word_embeddings=False,
        dtype=dtype,
        bos_token_id=None,
        eos_token_ids=(),
    )


def random_weights(shape: Shape, dtype: torch.dtype, device: torch.device) -> ModelWeights:
    generator = torch.Generator(device).manual_seed(0)

    def linear(rows: int, columns: int) -> DenseLinear:
        weight = torch.empty(rows, columns, dtype=dtype, device=device)
        return DenseLinear(weight.normal_(0, columns**-0.5, generator=generator))

    norm = torch.ones(shape.hidden, device=device)
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layers = tuple(
        LayerWeights(
            attention_in_norm=norm,
            qkv=linear(queries + 2 * keys, shape.hidden),
            query_norm=None,
            key_norm=None,
            output=linear(shape.hidden, queries),
            attention_out_norm=None,
            mlp_in_norm=norm,
            mlp=DenseMlp(linear(2 * shape.inner, shape.hidden), linear(shape.hidden, shape.inner)),
            mlp_out_norm=None,
        )
        for _ in range(shape.layers)
    )
    embedding = torch.empty(shape.vocab, shape.hidden, dtype=dtype, device=device)
    return ModelWeights(
        embedding.normal_(generator=generator), layers, norm, linear(shape.vocab, shape.hidden)
    )


def _moved_linear(linear: Any, device: torch.device) -> Any:
    return replace(linear, weight=linear.weight.to(device))


def _moved_norm(norm: Tensor | None, device: torch.device) -> Tensor | None:
    return None if norm is None else norm.to(device)


def moved(weights: ModelWeights, device: torch.device) -> ModelWeights:
    """A copy of dense weights on `device`."""
    on_device = map_linears(weights, partial(_moved_linear, device=device))
    layers = tuple(
        replace(
            layer,
            attention_in_norm=_moved_norm(layer.attention_in_norm, device),
            mlp_in_norm=_moved_norm(layer.mlp_in_norm, device),
        )
        for layer in on_device.layers
    )
    return replace(
        on_device,
        layers=layers,
        embedding=weights.embedding.to(device),
        final_norm=weights.final_norm.to(device),
    )


def pool_for(config: ModelConfig, kv_dtype: str, tokens: int, device: torch.device) -> KvPool:
    layout = KvLayout.of(config, kv_dtype)
    return KvPool(layout, -(-tokens // 16) + 1, compute_dtype=TORCH_DTYPES[config.dtype], device=device.type)
