"""Gemma 2: norms around attention and MLP, soft-caps, a window on every other layer, a scaled embedding."""

from __future__ import annotations

from dataclasses import replace

from shared.engine.loading.families.family import (
    Family,
    TensorNames,
    attention_bias,
    decoder,
    in_dtype,
    windowed_layers,
    with_windows,
)
from shared.engine.loading.families.raw_config import RawConfig
from shared.engine.loading.model_config import ModelConfig

NAMES = TensorNames(mlp_in_norm="pre_feedforward_layernorm")


def read(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(sliding_window=4096, final_logit_softcapping=30.0, attn_logit_softcapping=50.0)
    model = replace(gemma(raw), attention_softcap=raw.number("attn_logit_softcapping", 0.0))
    return with_windows(raw, model, windowed_layers(raw, model.num_layers, lambda layer: layer % 2 == 0))


def gemma(raw: RawConfig) -> ModelConfig:
    """Return what Gemma 2 and 3 have in common."""
    raw = raw.with_defaults(
        num_key_value_heads=4,
        head_dim=256,
        query_pre_attn_scalar=256,
        hidden_activation="gelu_pytorch_tanh",
        tie_word_embeddings=True,
    )
    raw.refuse("use_bidirectional_attention", "only causal models generate text")
    model = attention_bias(raw, decoder(raw, activation_field="hidden_activation"))
    return replace(
        model,
        norms="both",
        norm_offset=1.0,
        attention_scale=raw.number("query_pre_attn_scalar", 256) ** -0.5,
        logit_softcap=raw.number("final_logit_softcapping", 0.0),
        embedding_scale=in_dtype(model.hidden_size**0.5, raw.dtype),
    )


FAMILY = Family("Gemma2ForCausalLM", read, NAMES)
