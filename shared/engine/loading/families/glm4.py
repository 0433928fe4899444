"""GLM 4 without experts: half of each head rotates, neighbour by neighbour; Glm4, of 2025, has norms after
attention and MLP too."""

from __future__ import annotations

from dataclasses import replace

from shared.engine.loading.families.family import Family, TensorNames, decoder
from shared.engine.loading.families.raw_config import RawConfig
from shared.engine.loading.model_config import ModelConfig


def read(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(
        num_key_value_heads=2,
        head_dim=128,
        rms_norm_eps=0.00000015625,
        partial_rotary_factor=0.5,
        max_position_embeddings=131072,
    )
    return replace(decoder(raw), qkv_bias=raw.flag("attention_bias", True), neighbours_rotate=True)


def read_with_post_norms(raw: RawConfig) -> ModelConfig:
    return replace(read(raw), norms="both")


FAMILY = Family("GlmForCausalLM", read, TensorNames(gate_up=("mlp.gate_up_proj",)))
FAMILY_WITH_POST_NORMS = Family(
    "Glm4ForCausalLM",
    read_with_post_norms,
    TensorNames(
        gate_up=("mlp.gate_up_proj",),
        attention_out_norm="post_self_attn_layernorm",
        mlp_in_norm="post_attention_layernorm",
        mlp_out_norm="post_mlp_layernorm",
    ),
)
