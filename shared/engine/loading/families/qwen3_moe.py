"""Qwen 3 with experts, in all layers or in those that `mlp_only_layers` and `decoder_sparse_step` leave."""

from __future__ import annotations

from dataclasses import replace

from shared.engine.loading.families.family import Family, attention_bias, decoder, with_experts, with_windows
from shared.engine.loading.families.raw_config import RawConfig
from shared.engine.loading.model_config import ModelConfig, MoeConfig


def read(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(num_key_value_heads=4)
    model = replace(attention_bias(raw, decoder(raw)), qk_norm="head")
    if raw.flag("use_sliding_window"):
        model = with_windows(raw.with_defaults(sliding_window=4096), model)
    moe = MoeConfig(
        num_experts=raw.integer("num_local_experts", raw.integer("num_experts", 128)),
        experts_per_token=raw.integer("num_experts_per_tok", 8),
        intermediate_size=raw.integer("moe_intermediate_size", 768),
        normalize=raw.flag("norm_topk_prob"),
    )
    return with_experts(model, moe, sparse_layers(raw, model))


def sparse_layers(raw: RawConfig, model: ModelConfig) -> list[bool]:
    """Return whether each layer has experts."""
    dense, step = raw.integers("mlp_only_layers") or (), raw.integer("decoder_sparse_step", 1)
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(model.num_layers)]


FAMILY = Family("Qwen3MoeForCausalLM", read)
