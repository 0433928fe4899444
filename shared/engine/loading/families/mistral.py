"""Mistral: Llama with a sliding window on every layer, or none."""

from __future__ import annotations

from shared.engine.loading.families.family import Family, decoder, with_windows
from shared.engine.loading.families.raw_config import RawConfig
from shared.engine.loading.model_config import ModelConfig


def read(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(num_key_value_heads=8, sliding_window=4096)
    return with_windows(raw, decoder(raw))


FAMILY = Family("MistralForCausalLM", read)
