"""Command R7B, Command A: one norm, which takes the mean away, feeds attention and MLP beside each other.
Layers without a window have no positions."""

from __future__ import annotations

from dataclasses import replace

from shared.engine.loading.families.family import (
    Family,
    attention_bias,
    decoder,
    windowed_layers,
    with_windows,
)
from shared.engine.loading.families.raw_config import RawConfig
from shared.engine.loading.model_config import ModelConfig


def read(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(sliding_window=4096, tie_word_embeddings=True)
    raw = raw.with_defaults(rms_norm_eps=raw.number("layer_norm_eps", 1e-5))
    pattern = raw.integer("sliding_window_pattern", raw.integer("_sliding_window_pattern", 4))
    model = attention_bias(raw, decoder(raw))
    windowed = windowed_layers(raw, model.num_layers, lambda layer: (layer + 1) % pattern != 0)
    model = with_windows(raw, model, windowed)
    layers = zip(model.layers, windowed, strict=True)
    return replace(
        model,
        norms="shared",
        norm_kind="layer",
        logit_scale=raw.number("logit_scale", 0.0625),
        neighbours_rotate=True,
        layers=tuple(layer if own else replace(layer, rope=None) for layer, own in layers),
    )


FAMILY = Family("Cohere2ForCausalLM", read)
