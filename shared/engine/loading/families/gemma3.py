"""Gemma 3 text: Gemma 2 with norms on queries and keys, no soft-caps, and a rope of their own for windowed
layers. Of checkpoints with a vision tower the language model is read."""

from __future__ import annotations

from dataclasses import replace

from shared.engine.loading.families.family import Family, windowed_layers, with_windows
from shared.engine.loading.families.gemma2 import NAMES, gemma
from shared.engine.loading.families.raw_config import RawConfig
from shared.engine.loading.families.rope_config import rope_of
from shared.engine.loading.model_config import ModelConfig, RopeConfig


def read(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(sliding_window=4096, max_position_embeddings=131072)
    pattern = raw.integer("_sliding_window_pattern", raw.integer("sliding_window_pattern", 6))
    model = gemma(raw.without("rope_parameters", "rope_scaling"))
    windowed = windowed_layers(raw, model.num_layers, lambda layer: (layer + 1) % pattern != 0)
    model = with_windows(raw, model, windowed)
    everywhere, local = _ropes(raw, model.head_dim)
    layers = zip(model.layers, windowed, strict=True)
    return replace(
        model,
        qk_norm="head",
        layers=tuple(replace(layer, rope=local if own else everywhere) for layer, own in layers),
    )


def _ropes(raw: RawConfig, head_dim: int) -> tuple[RopeConfig, RopeConfig]:
    """Return the ropes of full-attention layers and of windowed ones. `rope_scaling` is for the first
    alone."""
    by_type = RawConfig(raw.part("rope_parameters"), raw.dtype)
    everywhere = {**by_type.part("full_attention"), **raw.part("rope_scaling")}
    theta, local_theta = raw.number("rope_theta", 1000000.0), raw.number("rope_local_base_freq", 10000.0)
    return (
        rope_of({"rope_theta": theta, **everywhere}, raw, head_dim),
        rope_of({"rope_theta": local_theta, **by_type.part("sliding_attention")}, raw, head_dim),
    )


def read_with_vision(raw: RawConfig) -> ModelConfig:
    """The published configs state of the language model only what differs from the smallest model's."""
    fields = {**raw.fields, **raw.part("text_config"), "architectures": raw.fields["architectures"]}
    raw = RawConfig(fields, raw.dtype, raw.eos_token_ids)
    return read(
        raw.with_defaults(
            vocab_size=262208,
            hidden_size=2304,
            intermediate_size=9216,
            num_hidden_layers=26,
            num_attention_heads=8,
        )
    )


FAMILY = Family("Gemma3ForCausalLM", read, NAMES)
FAMILY_WITH_VISION = Family(
    "Gemma3ForConditionalGeneration",
    read_with_vision,
    NAMES,
    prefix="language_model.model.",
    head="language_model.lm_head",
    ignored=("vision_tower.", "multi_modal_projector."),
)
