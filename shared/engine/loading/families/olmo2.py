"""OLMo 2: norms after attention and MLP instead of before, and over all query and all key heads at once."""

from __future__ import annotations

from dataclasses import replace

from shared.engine.loading.families.family import Family, attention_bias, decoder
from shared.engine.loading.families.raw_config import RawConfig
from shared.engine.loading.model_config import ModelConfig


def read(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(rms_norm_eps=1e-5)
    return replace(attention_bias(raw, decoder(raw)), norms="post", qk_norm="all")


FAMILY = Family("Olmo2ForCausalLM", read)
