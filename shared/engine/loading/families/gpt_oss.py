"""gpt-oss: a learned score beside the keys' in each head's softmax, windows in every second layer, biases
everywhere, and experts with a clamped SwiGLU, which are stored in MXFP4."""

from __future__ import annotations

from dataclasses import replace

from shared.engine.loading.families.family import (
    Family,
    TensorNames,
    decoder,
    windowed_layers,
    with_experts,
    with_windows,
)
from shared.engine.loading.families.raw_config import RawConfig
from shared.engine.loading.model_config import ModelConfig, MoeConfig

_ROPE = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
         "original_max_position_embeddings": 4096}  # fmt: skip


def read(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(
        num_key_value_heads=8,
        head_dim=64,
        rms_norm_eps=1e-5,
        sliding_window=128,
        max_position_embeddings=131072,
        rope_theta=150000.0,
    )
    if not raw.part("rope_scaling"):
        raw = raw.with_defaults(rope_parameters=_ROPE)
    bias = raw.flag("attention_bias", True)
    model = replace(
        decoder(raw.without("hidden_act")),  # it says silu, and the experts have an activation of their own
        qkv_bias=bias,
        output_bias=bias,
        attention_sinks=True,
        activation="clamped_swiglu",
        swiglu_slope=raw.number("swiglu_alpha", 1.702),
        swiglu_limit=raw.number("swiglu_limit", 7.0),
    )
    model = with_windows(raw, model, windowed_layers(raw, model.num_layers, lambda layer: layer % 2 == 0))
    moe = MoeConfig(
        num_experts=raw.integer("num_local_experts", 128),
        experts_per_token=raw.integer("num_experts_per_tok", 4),
        intermediate_size=model.intermediate_size,
        normalize=True,  # over the chosen ones, as a softmax of their logits alone is
        router_bias=True,
        expert_bias=True,
    )
    return with_experts(model, moe)


FAMILY = Family("GptOssForCausalLM", read, TensorNames(router="mlp.router", interleaved_experts=True))
