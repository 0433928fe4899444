"""Tiny models of every family in several odd shapes: the matrix that every backend is tested with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from transformers import (
    Cohere2Config,
    DeepseekV2Config,
    DeepseekV3Config,
    Exaone4Config,
    Gemma2Config,
    Gemma3TextConfig,
    Glm4Config,
    Glm4MoeConfig,
    Glm4MoeLiteConfig,
    GlmConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeHybridConfig,
    LlamaConfig,
    Ministral3Config,
    MinistralConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)


@dataclass(frozen=True)
class Shape:
    """`fields` go over BASE_FIELDS. `min_prompt_tokens`: transformers rotates shorter prompts otherwise."""

    config_class: type[PreTrainedConfig]
    fields: dict[str, Any] = field(default_factory=dict)
    save_options: dict[str, Any] = field(default_factory=dict)
    min_prompt_tokens: int = 1
    max_model_len: int = 256

    @property
    def is_latent(self) -> bool:
        """Whether it attends to compressed KV, for which there are no compiled kernels."""
        return "kv_lora_rank" in self.fields


BASE_FIELDS: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
ONE_WIDE_HEAD = {"head_dim": 32, "hidden_size": 36, "num_key_value_heads": 1}
UNGROUPED_ODD = {"head_dim": 14, "hidden_size": 50, "num_attention_heads": 5, "num_key_value_heads": 5}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [1.5, 2.5, 4.0, 9.0],
}
GEMMA2 = {"head_dim": 10, "query_pre_attn_scalar": 24, "sliding_window": 9}
GEMMA3 = {"head_dim": 10, "query_pre_attn_scalar": 24, "sliding_window": 9, "sliding_window_pattern": 2}
MIXTRAL = {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": None}
QWEN3_MOE = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 22, "head_dim": 12}
GLM4_MOE = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "head_dim": 12,
    "routed_scaling_factor": 1.7,
}
LATENT = {
    "num_key_value_heads": 6,
    "kv_lora_rank": 22,
    "q_lora_rank": 26,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 8,
    "v_head_dim": 14,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
}
QWEN2_MOE = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 22,
    "shared_expert_intermediate_size": 30,
}
GPT_OSS = {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 12, "sliding_window": 11}

ALL_SEEN = ["full_attention"] * 3
GRANITE = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.22,
    "logits_scaling": 0.5,
}
GRANITE4 = {
    **GRANITE,
    "layer_types": ["attention"] * 3,
    "num_local_experts": 0,
    "shared_intermediate_size": 72,
    "mamba_n_heads": 6,
}

SHAPES: dict[str, Shape] = {
    "llama": Shape(LlamaConfig),
    "llama, one wide kv head, tied": Shape(LlamaConfig, {**ONE_WIDE_HEAD, "tie_word_embeddings": True}),
    "llama, every head its own, biases": Shape(
        LlamaConfig, {**UNGROUPED_ODD, "attention_bias": True, "mlp_bias": True}
    ),
    "llama, one layer, large eps, sharded": Shape(
        LlamaConfig, {"num_hidden_layers": 1, "rms_norm_eps": 0.01}, {"max_shard_size": "20KB"}
    ),
    "llama, linear rope": Shape(
        LlamaConfig, {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}
    ),
    "llama, dynamic rope": Shape(
        LlamaConfig, {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}}
    ),
    "llama, llama3 rope": Shape(LlamaConfig, {"rope_parameters": LLAMA3_ROPE, "head_dim": 20}),
    "llama, yarn rope": Shape(LlamaConfig, {"rope_parameters": YARN_ROPE}),
    "llama, yarn rope with every setting": Shape(
        LlamaConfig,
        {
            "rope_parameters": {
                **YARN_ROPE,
                "original_max_position_embeddings": 64,
                "beta_fast": 8.0,
                "beta_slow": 2.0,
                "mscale": 0.7,
                "mscale_all_dim": 1.5,
                "truncate": False,
            },
            "head_dim": 32,
        },
    ),
    "mistral": Shape(MistralConfig, {"sliding_window": 13}),
    "mistral without window": Shape(MistralConfig, {"sliding_window": None, **ONE_WIDE_HEAD}),
    "qwen2": Shape(Qwen2Config, UNGROUPED_ODD | {"hidden_size": 70}),
    "qwen2, late windows, tied": Shape(
        Qwen2Config,
        {
            "use_sliding_window": True,
            "sliding_window": 11,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3": Shape(Qwen3Config, {"head_dim": 20, "tie_word_embeddings": True}),
    "qwen3, windows by layer type, biases": Shape(
        Qwen3Config,
        {
            "head_dim": 6,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "smollm3": Shape(SmolLM3Config, {"num_hidden_layers": 5, "tie_word_embeddings": True}),
    "smollm3, no rope on the first, windows": Shape(
        SmolLM3Config, {"no_rope_layers": [0, 1, 1], "use_sliding_window": True, "sliding_window": 10}
    ),
    "phi3": Shape(Phi3Config, {"num_key_value_heads": 6, "sliding_window": 21}),
    "phi3, a rope on half a head": Shape(
        Phi3Config, {"hidden_size": 96, "partial_rotary_factor": 0.5, "tie_word_embeddings": True}
    ),
    "phi3, longrope within its context": Shape(
        Phi3Config,
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 128},
        max_model_len=128,
    ),
    "phi3, longrope beyond its context": Shape(
        Phi3Config,
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32},
        min_prompt_tokens=33,
    ),
    "gemma2": Shape(Gemma2Config, {**GEMMA2, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 9.0}),
    "gemma2, untied, no caps": Shape(
        Gemma2Config,
        {
            "head_dim": 8,
            "sliding_window": 40,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
        },
    ),
    "gemma3": Shape(Gemma3TextConfig, {**GEMMA3, "tie_word_embeddings": True}),
    "gemma3, linear rope where all is seen": Shape(
        Gemma3TextConfig,
        {
            **GEMMA3,
            "num_key_value_heads": 1,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            },
        },
    ),
    "olmo2": Shape(Olmo2Config),
    "olmo2, every head its own, biases": Shape(
        Olmo2Config, {"num_key_value_heads": 6, "attention_bias": True, "tie_word_embeddings": True}
    ),
    "olmo3": Shape(Olmo3Config, {"num_hidden_layers": 4, "sliding_window": 9}),
    "olmo3, yarn where all is seen": Shape(
        Olmo3Config,
        {
            "num_key_value_heads": 6,
            "sliding_window": 14,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": YARN_ROPE,
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            },
        },
    ),
    "exaone4": Shape(Exaone4Config, {"num_hidden_layers": 4, "sliding_window": 12, "head_dim": 10}),
    "exaone4 without windows, tied": Shape(
        Exaone4Config, {"sliding_window": None, "tie_word_embeddings": True, "layer_types": ALL_SEEN}
    ),
    "granite": Shape(GraniteConfig, GRANITE),
    "granite, biases, tied": Shape(
        GraniteConfig, {**GRANITE, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    ),
    "granite 4": Shape(GraniteMoeHybridConfig, GRANITE4),
    "granite 4 with positions": Shape(
        GraniteMoeHybridConfig,
        {**GRANITE4, "position_embedding_type": "rope", "shared_intermediate_size": 44},
    ),
    "cohere2": Shape(
        Cohere2Config,
        {"num_hidden_layers": 4, "sliding_window": 11, "tie_word_embeddings": True, "logit_scale": 0.5},
    ),
    "cohere2, one wide kv head, biases": Shape(
        Cohere2Config,
        {
            "hidden_size": 60,
            "num_key_value_heads": 1,
            "sliding_window": 30,
            "attention_bias": True,
            "logit_scale": 1.5,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "tie_word_embeddings": True,
        },
    ),
    "glm": Shape(GlmConfig, {"head_dim": 12}),
    "glm4": Shape(Glm4Config, {"head_dim": 16}),
    "glm4, whole heads rotate, no biases": Shape(
        Glm4Config,
        {
            "head_dim": 10,
            "attention_bias": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        },
    ),
    "ministral": Shape(
        MinistralConfig,
        {
            "head_dim": 8,
            "sliding_window": 13,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    ),
    "ministral3": Shape(
        Ministral3Config,
        {
            "head_dim": 12,
            "rope_parameters": {
                **YARN_ROPE,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
    ),
    "mixtral": Shape(MixtralConfig, MIXTRAL),
    "mixtral, window, experts stacked": Shape(
        MixtralConfig, {**MIXTRAL, "sliding_window": 12}, {"save_original_format": False}
    ),
    "qwen2 moe": Shape(Qwen2MoeConfig, QWEN2_MOE),
    "qwen2 moe, windows, some layers dense": Shape(
        Qwen2MoeConfig,
        {
            **QWEN2_MOE,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
            "qkv_bias": False,
            "use_sliding_window": True,
            "sliding_window": 10,
            "max_window_layers": 2,
        },
    ),
    "glm4 moe": Shape(Glm4MoeConfig, {**GLM4_MOE, "attention_bias": True}),
    "glm4 moe, chosen in groups, norms on heads": Shape(
        Glm4MoeConfig,
        {
            **GLM4_MOE,
            "n_routed_experts": 12,
            "num_experts_per_tok": 4,
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": False,
            "use_qk_norm": True,
            "first_k_dense_replace": 2,
        },
    ),
    "deepseek v2": Shape(
        DeepseekV2Config,
        {
            **LATENT,
            "q_lora_rank": None,
            "rope_parameters": {**YARN_ROPE, "mscale": 0.7, "mscale_all_dim": 0.7},
        },
    ),
    "deepseek v2, chosen in groups, biases": Shape(
        DeepseekV2Config,
        {
            **LATENT,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "attention_bias": True,
            "rms_norm_eps": 0.01,
        },
    ),
    "deepseek v3": Shape(
        DeepseekV3Config,
        {
            **LATENT,
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": {**YARN_ROPE, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "deepseek v3, halves rotate, chosen from all, tied": Shape(
        DeepseekV3Config,
        {
            **LATENT,
            "q_lora_rank": None,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "rope_interleave": False,
            "v_head_dim": 4,
            "tie_word_embeddings": True,
        },
    ),
    "glm4 moe lite": Shape(Glm4MoeLiteConfig, {**LATENT, "v_head_dim": 20}),
    "gpt-oss": Shape(GptOssConfig, GPT_OSS),
    "gpt-oss, everything seen, one kv head, clamped early": Shape(
        GptOssConfig,
        {
            **GPT_OSS,
            **ONE_WIDE_HEAD,
            "layer_types": ["full_attention"] * 3,
            "rope_parameters": {**YARN_ROPE, "truncate": False},
            "swiglu_alpha": 1.2,
            "swiglu_limit": 0.3,
            "attention_bias": False,
        },
    ),
    "qwen3 moe": Shape(Qwen3MoeConfig, {**QWEN3_MOE, "norm_topk_prob": True}),
    "qwen3 moe, some layers dense": Shape(
        Qwen3MoeConfig,
        {**QWEN3_MOE, "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    ),
    "qwen3 moe, experts stacked, window": Shape(
        Qwen3MoeConfig,
        {**QWEN3_MOE, "use_sliding_window": True, "sliding_window": 12},
        {"save_original_format": False},
    ),
}
