"""SmolLM 3: Llama where every fourth layer has no positions."""

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
from shared.errors import InvalidRequest


def read(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(num_key_value_heads=4, rope_theta=2000000.0, tie_word_embeddings=True)
    model = replace(attention_bias(raw, decoder(raw)), mlp_bias=raw.flag("mlp_bias"))
    rotates = _rotates(raw, model.num_layers)
    layers = zip(model.layers, rotates, strict=True)
    model = replace(model, layers=tuple(layer if own else replace(layer, rope=None) for layer, own in layers))
    if not raw.flag("use_sliding_window"):
        return model
    return with_windows(raw, model, windowed_layers(raw, model.num_layers, lambda layer: not rotates[layer]))


def _rotates(raw: RawConfig, num_layers: int) -> tuple[bool, ...]:
    """`no_rope_layers` says 1 for the layers that do have a rope."""
    stated = raw.integers("no_rope_layers")
    if stated is None:
        interval = raw.integer("no_rope_layer_interval", 4)
        return tuple((layer + 1) % interval != 0 for layer in range(num_layers))
    if len(stated) < num_layers:
        raise InvalidRequest(
            f"config.json: no_rope_layers must have a number for each of {num_layers} layers"
        )
    return tuple(bool(each) for each in stated[:num_layers])


FAMILY = Family("SmolLM3ForCausalLM", read)
