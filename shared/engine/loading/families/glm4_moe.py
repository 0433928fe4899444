"""GLM 4.5 and 4.6 with experts: chosen by the sigmoid of the router's logits and a bias, beside a shared
expert; the first layers are dense, and half of each head rotates."""

from __future__ import annotations

from dataclasses import replace

from shared.engine.loading.families.family import Family, decoder, with_experts
from shared.engine.loading.families.raw_config import MAX_INTEGER, RawConfig
from shared.engine.loading.model_config import ModelConfig, MoeConfig


def read(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(
        num_key_value_heads=8, rms_norm_eps=1e-5, partial_rotary_factor=0.5, max_position_embeddings=131072
    )
    model = replace(
        decoder(raw),
        qkv_bias=raw.flag("attention_bias"),
        qk_norm="head" if raw.flag("use_qk_norm") else "none",
    )
    return with_experts(model, grouped_experts(raw), sparse_after_first(raw, model))


def grouped_experts(raw: RawConfig) -> MoeConfig:
    """The routing of DeepSeek-V3, which GLM 4.5 took over, by the fields that both have."""
    size = raw.integer("moe_intermediate_size", 1408)
    num_groups = raw.integer("n_group", 1)
    return MoeConfig(
        num_experts=raw.integer("n_routed_experts", 128),
        experts_per_token=raw.integer("num_experts_per_tok", 8),
        intermediate_size=size,
        normalize=raw.flag("norm_topk_prob", True),
        scores="sigmoid",
        choice_bias=True,
        scale=raw.number("routed_scaling_factor", 1.0),
        num_groups=num_groups,
        groups_per_token=raw.integer("topk_group", 1),
        group_best=2 if num_groups > 1 else 1,
        shared_intermediate_size=size * raw.integer("n_shared_experts", 1, at_most=MAX_INTEGER // size),
    )


def sparse_after_first(raw: RawConfig, model: ModelConfig) -> list[bool]:
    """Whether each layer has experts: all but the first ones do."""
    first = raw.integer("first_k_dense_replace", 1, at_least=0)
    return [layer >= first for layer in range(model.num_layers)]


FAMILY = Family("Glm4MoeForCausalLM", read, extra_layers=True)
