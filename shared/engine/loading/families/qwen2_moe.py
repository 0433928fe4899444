"""Qwen 1.5 and 2 with experts, beside them an expert that every token meets through a gate."""

from __future__ import annotations

from dataclasses import replace

from shared.engine.loading.families.family import (
    Family,
    TensorNames,
    decoder,
    windowed_layers,
    with_experts,
    with_windows,
)
from shared.engine.loading.families.qwen3_moe import sparse_layers
from shared.engine.loading.families.raw_config import RawConfig
from shared.engine.loading.model_config import ModelConfig, MoeConfig


def read(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(num_key_value_heads=16)
    model = replace(with_early_windows(raw, decoder(raw)), qkv_bias=raw.flag("qkv_bias", True))
    moe = MoeConfig(
        num_experts=raw.integer("num_experts", 60),
        experts_per_token=raw.integer("num_experts_per_tok", 4),
        intermediate_size=raw.integer("moe_intermediate_size", 1408),
        normalize=raw.flag("norm_topk_prob"),
        shared_intermediate_size=raw.integer("shared_expert_intermediate_size", 5632),
        shared_gate=True,
    )
    return with_experts(model, moe, sparse_layers(raw, model))


def with_early_windows(raw: RawConfig, model: ModelConfig) -> ModelConfig:
    """`sliding_window` counts only with `use_sliding_window`, in every second layer of the first
    `max_window_layers`, as transformers reads it."""
    if not raw.flag("use_sliding_window"):
        return model
    end = raw.integer("max_window_layers", 28, at_least=0)
    windowed = windowed_layers(raw, model.num_layers, lambda layer: layer < end and layer % 2 == 0)
    return with_windows(raw.with_defaults(sliding_window=4096), model, windowed)


FAMILY = Family("Qwen2MoeForCausalLM", read, TensorNames(shared_expert="mlp.shared_expert"))
