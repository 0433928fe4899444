"""EXAONE 4: norms after attention and MLP and on each head; beside layers with windows the others have no
positions."""

from __future__ import annotations

from dataclasses import replace

from shared.engine.loading.families.family import Family, decoder, windowed_layers, with_windows
from shared.engine.loading.families.raw_config import RawConfig, shown
from shared.engine.loading.model_config import ModelConfig
from shared.errors import InvalidRequest


def read(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(num_key_value_heads=32, rms_norm_eps=1e-5, sliding_window=4096)
    model = replace(decoder(raw), norms="post", qk_norm="head")
    if raw.optional_integer("sliding_window") is None:
        return model
    windowed = windowed_layers(raw, model.num_layers, _windowed_by_pattern(raw, model.num_layers).__getitem__)
    model = with_windows(raw, model, windowed)
    layers = tuple(
        layer if layer.window_tokens is not None else replace(layer, rope=None) for layer in model.layers
    )
    return replace(model, layers=layers)


def _windowed_by_pattern(raw: RawConfig, num_layers: int) -> list[bool]:
    """Every n-th layer sees everything by a `sliding_window_pattern` n; by "LLLG" its G do, and the last."""
    pattern = raw.fields.get("sliding_window_pattern", 4)
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        local = [pattern[layer % len(pattern)] == "L" for layer in range(num_layers)]
        return [*local[:-1], False]
    if isinstance(pattern, str):
        raise InvalidRequest(
            f"config.json: sliding_window_pattern {shown(pattern)} must be a number, or letters L and G"
        )
    every = raw.integer("sliding_window_pattern", 4)
    return [(layer + 1) % every != 0 for layer in range(num_layers)]


FAMILY = Family("Exaone4ForCausalLM", read)
