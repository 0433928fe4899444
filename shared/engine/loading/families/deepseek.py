"""DeepSeek V2 and V3, and Kimi K2, which is built as V3 is: attention on compressed KV, experts chosen in
groups beside one that every token meets, and the first layers dense."""

from __future__ import annotations

from dataclasses import replace

from shared.engine.loading.families.family import Family, attention_bias, decoder, with_experts
from shared.engine.loading.families.raw_config import MAX_INTEGER, RawConfig, shown
from shared.engine.loading.families.rope_config import yarn_growth
from shared.engine.loading.model_config import LatentConfig, ModelConfig, MoeConfig
from shared.errors import InvalidRequest

_GROUPED = {"greedy": False, "group_limited_greedy": True}
"""V2's `topk_method`: whether experts come from the best groups alone."""


def read_v2(raw: RawConfig) -> ModelConfig:
    _expect(raw, scoring_func="softmax", moe_layer_freq=1)
    raw = raw.with_defaults(q_lora_rank=1536, topk_method="greedy", max_position_embeddings=2048)
    method = raw.fields["topk_method"]
    if not isinstance(method, str) or method not in _GROUPED:
        raise InvalidRequest(
            f"config.json: topk_method {shown(method)} is not supported; use one of {', '.join(_GROUPED)}"
        )
    raw.refuse("norm_topk_prob", "shares of experts are not divided by their sum in this architecture")
    size = raw.integer("moe_intermediate_size", 1407)
    moe = MoeConfig(
        num_experts=raw.integer("n_routed_experts", 64),
        experts_per_token=raw.integer("num_experts_per_tok"),
        intermediate_size=size,
        normalize=False,
        scale=raw.number("routed_scaling_factor", 1.0),
        num_groups=raw.integer("n_group") if _GROUPED[method] else 1,
        groups_per_token=raw.integer("topk_group") if _GROUPED[method] else 1,
        shared_intermediate_size=size * raw.integer("n_shared_experts", 2, at_most=MAX_INTEGER // size),
    )
    model = replace(with_latent(raw), neighbours_rotate=True)
    return with_experts(model, moe, sparse_after_first(raw, model, usual=0))


def read_v3(raw: RawConfig) -> ModelConfig:
    _expect(raw, scoring_func="sigmoid", moe_layer_freq=1, topk_method="noaux_tc")
    raw = raw.with_defaults(
        q_lora_rank=1536,
        max_position_embeddings=4096,
        moe_intermediate_size=2048,
        n_routed_experts=256,
        routed_scaling_factor=2.5,
        n_group=8,
        topk_group=4,
    )
    model = with_latent(raw)
    return with_experts(model, grouped_experts(raw), sparse_after_first(raw, model, usual=3))


def _expect(raw: RawConfig, **values: str | int) -> None:
    """Raise InvalidRequest where a field says something else than what transformers takes for granted."""
    for name, value in values.items():
        stated = raw.fields.get(name, value)
        if stated != value:
            raise InvalidRequest(f"config.json: {name} {shown(stated)} is not supported; it must be {value}")


def with_latent(raw: RawConfig) -> ModelConfig:
    """A decoder with multi-head latent attention; `head_dim` of these configs is the part that rotates."""
    rope_dim = raw.integer("qk_rope_head_dim", 64)
    alike = raw.without("head_dim", "num_key_value_heads")  # what a token keeps is of no head
    plain = decoder(alike.with_defaults(head_dim=rope_dim, num_key_value_heads=1))
    latent = LatentConfig(
        rank=raw.integer("kv_lora_rank", 512),
        plain_dim=raw.integer("qk_nope_head_dim", 128),
        rope_dim=rope_dim,
        value_dim=raw.integer("v_head_dim", 128),
        query_rank=raw.optional_integer("q_lora_rank"),
    )
    model = attention_bias(raw, plain)
    if model.qkv_bias and latent.query_rank is None:
        raise InvalidRequest("config.json: attention_bias is not supported where q_lora_rank is null")
    return replace(
        model,
        num_kv_heads=1,
        head_dim=latent.key_dim,
        attention_scale=latent.query_dim**-0.5 * _context_growth(raw, plain) ** 2,
        neighbours_rotate=raw.flag("rope_interleave", True),
        latent=latent,
    )


def _context_growth(raw: RawConfig, model: ModelConfig) -> float:
    """Return what queries and keys alike are multiplied by for a context that was stretched."""
    rope = model.layers[0].rope
    assert rope is not None
    fields = raw.part("rope_scaling") or raw.part("rope_parameters")
    scale = RawConfig(fields, raw.dtype).optional_number("mscale_all_dim")
    return 1.0 if scale is None or rope.kind == "default" else yarn_growth(rope.factor, scale)


def grouped_experts(raw: RawConfig) -> MoeConfig:
    """The routing of DeepSeek-V3 (arXiv:2412.19437, section 2.1.2), which GLM 4.5 took over."""
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


def sparse_after_first(raw: RawConfig, model: ModelConfig, *, usual: int) -> list[bool]:
    """Return whether each layer has experts: all but the first ones do, of which there are `usual` ones."""
    first = raw.integer("first_k_dense_replace", usual, at_least=0)
    return [layer >= first for layer in range(model.num_layers)]


V2 = Family("DeepseekV2ForCausalLM", read_v2)
V3 = Family("DeepseekV3ForCausalLM", read_v3, extra_layers=True)
