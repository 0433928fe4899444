"""Qwen 2 and 2.5: Llama with biases on queries, keys and values; some have windows on their later layers."""

from __future__ import annotations

from dataclasses import replace

from shared.engine.loading.families.family import Family, decoder, windowed_layers, with_windows
from shared.engine.loading.families.raw_config import RawConfig
from shared.engine.loading.model_config import ModelConfig


def read(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(num_key_value_heads=32)
    return replace(with_late_windows(raw, decoder(raw)), qkv_bias=True)


def with_late_windows(raw: RawConfig, model: ModelConfig) -> ModelConfig:
    """`sliding_window` counts only with `use_sliding_window`, and from layer `max_window_layers` on."""
    if not raw.flag("use_sliding_window"):
        return model
    first = raw.integer("max_window_layers", 28, at_least=0)
    windowed = windowed_layers(raw, model.num_layers, lambda layer: layer >= first)
    return with_windows(raw.with_defaults(sliding_window=4096), model, windowed)


FAMILY = Family("Qwen2ForCausalLM", read)
