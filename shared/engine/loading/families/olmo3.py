"""OLMo 3: OLMo 2 with windows on three layers of four; only layers that see everything have a scaled rope."""

from __future__ import annotations

from dataclasses import replace

from shared.engine.loading.families.family import Family, windowed_layers, with_windows
from shared.engine.loading.families.olmo2 import read as read_olmo2
from shared.engine.loading.families.raw_config import RawConfig
from shared.engine.loading.families.rope_config import rope_of
from shared.engine.loading.model_config import ModelConfig, RopeConfig


def read(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(sliding_window=4096, rope_theta=500000.0)
    model = read_olmo2(raw.without("rope_parameters", "rope_scaling"))
    windowed = windowed_layers(raw, model.num_layers, lambda layer: (layer + 1) % 4 != 0)
    model = with_windows(raw, model, windowed)
    everywhere, local = _ropes(raw, model.head_dim)
    layers = zip(model.layers, windowed, strict=True)
    return replace(
        model, layers=tuple(replace(layer, rope=local if own else everywhere) for layer, own in layers)
    )


def _ropes(raw: RawConfig, head_dim: int) -> tuple[RopeConfig, RopeConfig]:
    """Return the ropes of full-attention layers and of windowed ones. `rope_scaling` is for the first
    alone."""
    by_type = RawConfig(raw.part("rope_parameters"), raw.dtype)
    everywhere = {**by_type.part("full_attention"), **raw.part("rope_scaling")}
    return rope_of(everywhere, raw, head_dim), rope_of(by_type.part("sliding_attention"), raw, head_dim)


FAMILY = Family("Olmo3ForCausalLM", read)
