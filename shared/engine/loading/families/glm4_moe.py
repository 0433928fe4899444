"""GLM 4.5 and 4.6 with experts, chosen as DeepSeek-V3 does, and GLM 4.7 Flash, which attends as it does as
well. The first layers are dense."""

from __future__ import annotations

from dataclasses import replace

from shared.engine.loading.families.deepseek import grouped_experts, sparse_after_first, with_latent
from shared.engine.loading.families.family import Family, decoder, with_experts
from shared.engine.loading.families.raw_config import RawConfig
from shared.engine.loading.model_config import ModelConfig
from shared.errors import InvalidRequest


def read(raw: RawConfig) -> ModelConfig:
    """Half of each head rotates."""
    raw = raw.with_defaults(
        num_key_value_heads=8, rms_norm_eps=1e-5, partial_rotary_factor=0.5, max_position_embeddings=131072
    )
    model = replace(
        decoder(raw),
        qkv_bias=raw.flag("attention_bias"),
        qk_norm="head" if raw.flag("use_qk_norm") else "none",
    )
    return with_experts(model, grouped_experts(raw), sparse_after_first(raw, model, usual=1))


def read_lite(raw: RawConfig) -> ModelConfig:
    raw = raw.with_defaults(
        q_lora_rank=768,
        qk_nope_head_dim=192,
        v_head_dim=256,
        rms_norm_eps=1e-5,
        max_position_embeddings=202752,
        moe_intermediate_size=1536,
        n_routed_experts=64,
        num_experts_per_tok=4,
        routed_scaling_factor=1.8,
    )
    model = with_latent(raw)
    return with_experts(model, grouped_experts(raw), _sparse_layers(raw, model))


def _sparse_layers(raw: RawConfig, model: ModelConfig) -> list[bool]:
    """Find the sparse layers by `mlp_layer_types`, which transformers writes, or by the number of dense
    ones."""
    stated = raw.fields.get("mlp_layer_types")
    if stated is None:
        return sparse_after_first(raw, model, usual=1)
    names = ("dense", "sparse")
    if (
        not isinstance(stated, list)
        or len(stated) != model.num_layers
        or not all(each in names for each in stated)
    ):
        raise InvalidRequest(
            f"config.json: mlp_layer_types must name {' or '.join(names)} for each of "
            f"{model.num_layers} layers"
        )
    return [each == "sparse" for each in stated]


FAMILY = Family("Glm4MoeForCausalLM", read, extra_layers=True)
LITE = Family("Glm4MoeLiteForCausalLM", read_lite, extra_layers=True)
