"""Qwen 3: a norm on each head of queries and keys, no biases by default, windows as Qwen 2 has them."""

from __future__ import annotations

from dataclasses import replace

from shared.engine.loading.families.family import Family, attention_bias, decoder
from shared.engine.loading.families.qwen2 import with_late_windows
from shared.engine.loading.families.raw_config import RawConfig
from shared.engine.loading.model_config import ModelConfig


def read(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(head_dim=128, num_key_value_heads=32)
    model = with_late_windows(raw, attention_bias(raw, decoder(raw)))
    return replace(model, qk_norm="head")


FAMILY = Family("Qwen3ForCausalLM", read)
