"""Llama 2 and 3, and what copied them: SmolLM2, TinyLlama, many others."""

from __future__ import annotations

from dataclasses import replace

from shared.engine.loading.families.family import Family, attention_bias, decoder
from shared.engine.loading.families.raw_config import RawConfig
from shared.engine.loading.model_config import ModelConfig


def read(raw: RawConfig) -> ModelConfig:
    return replace(attention_bias(raw, decoder(raw)), mlp_bias=raw.flag("mlp_bias"))


FAMILY = Family("LlamaForCausalLM", read)
