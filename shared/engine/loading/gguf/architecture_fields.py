"""Read what a GGUF file says of one architecture alone, as fields of a config.json.

What the keys mean is said by llama.cpp, which reads them (`src/models/`) and writes them (`conversion/`).
What is not in the file but in llama.cpp's code (which layers of Gemma have windows, for one) stands here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shared.engine.loading.families.family import MAX_LAYERS
from shared.engine.loading.gguf.model_metadata import ModelMetadata
from shared.engine.loading.gguf.rope_fields import rope_fields

Fields = dict[str, Any]

_SIGMOID = 2
"""The number of the sigmoid in `expert_gating_func`."""


def _llama(metadata: ModelMetadata) -> Fields:
    if metadata.integer("rope.dimension_count", 0, at_least=0) not in (0, _head_dim(metadata)):
        raise metadata.header.refused("a part of each head rotates, which no llama that is read does")
    if metadata.integer("expert_count", 0, at_least=0):
        return {
            "architectures": ["MixtralForCausalLM"],
            "num_local_experts": metadata.integer("expert_count"),
            "num_experts_per_tok": metadata.integer("expert_used_count"),
            "sliding_window": None,
        }
    return {"architectures": ["LlamaForCausalLM"], **_biases(metadata)}


def _biases(metadata: ModelMetadata) -> Fields:
    tensors = metadata.header.tensors
    return {
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
    }


def _qwen2(metadata: ModelMetadata) -> Fields:  # noqa: ARG001  (the signature of all of these)
    return {"architectures": ["Qwen2ForCausalLM"]}


def _qwen3(metadata: ModelMetadata) -> Fields:
    biased = "blk.0.attn_q.bias" in metadata.header.tensors
    return {"architectures": ["Qwen3ForCausalLM"], "attention_bias": biased}


def _qwen3_moe(metadata: ModelMetadata) -> Fields:
    return _qwen3(metadata) | {
        "architectures": ["Qwen3MoeForCausalLM"],
        # Where all layers have experts some files leave the width of a dense one out.
        "num_experts": metadata.integer("expert_count"),
        "num_experts_per_tok": metadata.integer("expert_used_count"),
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


def _qwen2_moe(metadata: ModelMetadata) -> Fields:
    dense = metadata.integer("feed_forward_length")
    chosen = metadata.integer("expert_used_count")
    return {
        "architectures": ["Qwen2MoeForCausalLM"],
        "qkv_bias": "blk.0.attn_q.bias" in metadata.header.tensors,
        "num_experts": metadata.integer("expert_count"),
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length", dense // chosen),
        "shared_expert_intermediate_size": metadata.integer("expert_shared_feed_forward_length", dense),
        "norm_topk_prob": False,
    }


def _glm4(metadata: ModelMetadata) -> Fields:
    return {"architectures": ["Glm4ForCausalLM"], **_biases(metadata)}


def _glm4_moe(metadata: ModelMetadata) -> Fields:
    """Read GLM 4.5 and 4.6; layers that predict further tokens are counted and left alone."""
    if metadata.integer("expert_gating_func", _SIGMOID, at_least=0) not in (0, _SIGMOID):
        raise metadata.header.refused(
            "its experts are not chosen by a sigmoid (expert_gating_func), as GLM's are; give its Hugging "
            "Face directory"
        )
    further = metadata.integer("nextn_predict_layers", 0, at_least=0)
    num_layers = metadata.integer("block_count") - further
    if num_layers < 1:
        raise metadata.header.refused(f"{further} of its layers predict further tokens, and none is left")
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "num_hidden_layers": num_layers,
        "attention_bias": "blk.0.attn_q.bias" in metadata.header.tensors,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in metadata.header.tensors,
        "n_routed_experts": metadata.integer("expert_count"),
        "num_experts_per_tok": metadata.integer("expert_used_count"),
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "n_shared_experts": metadata.integer("expert_shared_count"),
        "first_k_dense_replace": metadata.integer("leading_dense_block_count", 0, at_least=0),
        "routed_scaling_factor": metadata.number("expert_weights_scale", 1.0),
        "norm_topk_prob": metadata.flag("expert_weights_norm", default=False),
        "n_group": metadata.integer("expert_group_count", 1),
        "topk_group": metadata.integer("expert_group_used_count", 1),
    }


def _cohere2(metadata: ModelMetadata) -> Fields:
    return {
        "architectures": ["Cohere2ForCausalLM"],
        "attention_bias": "blk.0.attn_q.bias" in metadata.header.tensors,
        "logit_scale": metadata.number("logit_scale"),
        "sliding_window": metadata.integer("attention.sliding_window"),
        "layer_types": _layer_types(metadata, pattern=4),
    }


def _mistral3(metadata: ModelMetadata) -> Fields:
    """Read Ministral 3, whose queries grow with the context, or the text model of Mistral 3."""
    if metadata.integer("expert_count", 0, at_least=0):
        raise metadata.header.refused(
            "it is a mistral3 with experts, which is not read from a GGUF file; give its Hugging Face "
            "directory"
        )
    growth = metadata.number("attention.temperature_scale", 0.0)
    if not growth:
        return {"architectures": ["MistralForCausalLM"], "sliding_window": None}
    scaling = rope_fields(metadata, _head_dim(metadata))
    if scaling.get("rope_type") != "yarn":
        raise metadata.header.refused("its attention.temperature_scale needs a rope.scaling.type of yarn")
    return {
        "architectures": ["Ministral3ForCausalLM"],
        "rope_scaling": {**scaling, "llama_4_scaling_beta": growth},
    }


def _gpt_oss(metadata: ModelMetadata) -> Fields:
    scaling = rope_fields(metadata, _head_dim(metadata))
    return {
        "architectures": ["GptOssForCausalLM"],
        "intermediate_size": metadata.integer(
            "expert_feed_forward_length", metadata.integer("feed_forward_length")
        ),
        "attention_bias": "blk.0.attn_q.bias" in metadata.header.tensors,
        "num_local_experts": metadata.integer("expert_count"),
        "num_experts_per_tok": metadata.integer("expert_used_count"),
        "sliding_window": metadata.integer("attention.sliding_window"),
        # The model blends between dimensions that are no whole numbers; its files do not say so.
        "rope_scaling": {**scaling, "truncate": False} if scaling else {"rope_type": "default"},
    }


def _smollm3(metadata: ModelMetadata) -> Fields:
    return {"architectures": ["SmolLM3ForCausalLM"], "no_rope_layer_interval": 4, **_biases(metadata)}


def _granite(metadata: ModelMetadata) -> Fields:
    if metadata.header.metadata.get("granite.rope.scaling.finetuned") is False:
        raise metadata.header.refused(
            "it says that it has no positions (rope.scaling.finetuned), which is not read from a GGUF file; "
            "give its Hugging Face directory"
        )
    return {
        "architectures": ["GraniteForCausalLM"],
        "embedding_multiplier": metadata.number("embedding_scale", 1.0),
        "attention_multiplier": metadata.number("attention.scale", _head_dim(metadata) ** -0.5),
        "residual_multiplier": metadata.number("residual_scale", 1.0),
        "logits_scaling": metadata.number("logit_scale"),
        **_biases(metadata),
    }


def _olmo2(metadata: ModelMetadata) -> Fields:
    """OLMo 2, or with windows OLMo 3: both have the name of the first."""
    window = metadata.integer("attention.sliding_window", 0, at_least=0)
    if not window:
        return {"architectures": ["Olmo2ForCausalLM"]}
    theta = metadata.number("rope.freq_base_swa", metadata.number("rope.freq_base", 10000.0))
    return {
        "architectures": ["Olmo3ForCausalLM"],
        "sliding_window": window,
        "layer_types": _layer_types(metadata, pattern=4),
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": theta}},
    }


def _exaone4(metadata: ModelMetadata) -> Fields:
    window = metadata.integer("attention.sliding_window", 0, at_least=0) or None
    windowed = {"layer_types": _layer_types(metadata, pattern=4)} if window else {}
    return {"architectures": ["Exaone4ForCausalLM"], "sliding_window": window, **windowed}


def _phi3(metadata: ModelMetadata) -> Fields:
    context = metadata.integer("context_length")
    return {
        "architectures": ["Phi3ForCausalLM"],
        "original_max_position_embeddings": metadata.integer("rope.scaling.original_context_length", context),
        "sliding_window": metadata.integer("attention.sliding_window", 0, at_least=0) or None,
    }


def _gemma2(metadata: ModelMetadata) -> Fields:
    return {
        "architectures": ["Gemma2ForCausalLM"],
        "query_pre_attn_scalar": _query_scalar(metadata, layers_of_27b=46),
        "sliding_window": metadata.integer("attention.sliding_window", 4096),
        "layer_types": _layer_types(metadata, pattern=2),
        "attn_logit_softcapping": metadata.number("attn_logit_softcapping", 50.0) or None,
        "final_logit_softcapping": metadata.number("final_logit_softcapping", 30.0) or None,
    }


def _gemma3(metadata: ModelMetadata) -> Fields:
    window = metadata.integer("attention.sliding_window", 0, at_least=0)
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "rope_theta": metadata.number("rope.freq_base", 1000000.0),
        "rope_local_base_freq": metadata.number("rope.freq_base_swa", 10000.0),
        "query_pre_attn_scalar": _query_scalar(metadata, layers_of_27b=62),
        "sliding_window": window or None,
        "layer_types": _layer_types(metadata, pattern=6 if window else 1),
        "final_logit_softcapping": metadata.number("final_logit_softcapping", 0.0) or None,
    }


ARCHITECTURES: dict[str, Callable[[ModelMetadata], Fields]] = {
    "llama": _llama,
    "mistral3": _mistral3,
    "qwen2": _qwen2,
    "qwen2moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3_moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "gpt-oss": _gpt_oss,
    "smollm3": _smollm3,
    "granite": _granite,
    "olmo2": _olmo2,
    "exaone4": _exaone4,
    "cohere2": _cohere2,
    "glm4": _glm4,
    "glm4moe": _glm4_moe,
}
"""The reader of each architecture, by its name in `general.architecture`."""


def _head_dim(metadata: ModelMetadata) -> int:
    usual = metadata.integer("embedding_length") // metadata.integer("attention.head_count")
    return metadata.integer("attention.key_length", usual)


def _query_scalar(metadata: ModelMetadata, layers_of_27b: int) -> int:
    """Scores are divided by its root. The file does not say it; the largest Gemmas have another one."""
    if metadata.integer("block_count") == layers_of_27b:
        return metadata.integer("embedding_length") // metadata.integer("attention.head_count")
    return _head_dim(metadata)


def _layer_types(metadata: ModelMetadata, pattern: int) -> list[str]:
    """The last of each `pattern` layers sees everything, unless the file says which do."""
    num_layers = metadata.integer("block_count")
    windowed = metadata.flags("attention.sliding_window_pattern")
    if windowed is None:
        pattern = metadata.integer("attention.sliding_window_pattern", pattern)
        if num_layers > MAX_LAYERS:
            raise metadata.header.refused(f"it claims {num_layers} layers; at most {MAX_LAYERS} are read")
        windowed = [(layer + 1) % pattern != 0 for layer in range(num_layers)]
    return ["sliding_attention" if own else "full_attention" for own in windowed]
