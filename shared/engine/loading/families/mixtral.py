"""Mixtral: Mistral with experts in every layer."""

from __future__ import annotations

from shared.engine.loading.families.family import Family, TensorNames, decoder, with_experts, with_windows
from shared.engine.loading.families.raw_config import RawConfig
from shared.engine.loading.model_config import ModelConfig, MoeConfig


def read(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(num_key_value_heads=8, rope_theta=1000000.0, rms_norm_eps=1e-5)
    model = decoder(raw)
    moe = MoeConfig(
        num_experts=raw.integer("num_local_experts", 8),
        experts_per_token=raw.integer("num_experts_per_tok", 2),
        intermediate_size=model.intermediate_size,
        normalize=True,
    )
    return with_experts(with_windows(raw, model), moe)


FAMILY = Family(
    "MixtralForCausalLM",
    read,
    TensorNames(
        router="block_sparse_moe.gate",
        experts="block_sparse_moe.experts",
        expert_gate_up=("w1", "w3"),
        expert_down="w2",
    ),
)
