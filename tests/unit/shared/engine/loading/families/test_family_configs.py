"""Configs as they are published, in old spellings and leaving much out, mean what transformers reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from shared.engine import load_model_config
from shared.engine.loading.config import ModelConfig
from shared.engine.loading.families.refused import REFUSED
from shared.engine.torch_backend.rope import inverse_frequencies, rope_table
from shared.errors import InvalidRequest
from tests.support.engine_families import BASE_FIELDS, LONGROPE

SMALL: dict[str, Any] = {
    **{
        name: value
        for name, value in BASE_FIELDS.items()
        if name not in ("pad_token_id", "tie_word_embeddings")
    },
    "torch_dtype": "bfloat16",
}
WITHOUT_KV_HEADS = {name: value for name, value in SMALL.items() if name != "num_key_value_heads"}
GEMMA3_TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 90,
    "num_hidden_layers": 7,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
    "model_type": "gemma3_text",
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama 2": {**WITHOUT_KV_HEADS, "model_type": "llama", "rms_norm_eps": 1e-5, "rope_scaling": None},
    "llama 3.1": {
        **SMALL,
        "model_type": "llama",
        "eos_token_id": [3, 4],
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_type": "llama3",
        },
    },
    "llama with the first spelling": {
        **SMALL,
        "model_type": "llama",
        "rope_scaling": {"type": "dynamic", "factor": 2.0},
    },
    "smollm2": {**SMALL, "model_type": "llama", "rope_theta": 130000, "tie_word_embeddings": True},
    "mistral 0.1": {**SMALL, "model_type": "mistral", "rope_theta": 10000.0, "sliding_window": 4096},
    "mistral 0.3": {
        **SMALL,
        "model_type": "mistral",
        "rope_theta": 1e6,
        "sliding_window": None,
        "head_dim": 8,
    },
    "mistral that states little": {**SMALL, "num_attention_heads": 8, "model_type": "mistral"},
    "qwen2": {
        **SMALL,
        "model_type": "qwen2",
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "use_sliding_window": False,
        "max_window_layers": 28,
        "tie_word_embeddings": True,
    },
    "qwen2.5 stretched by yarn": {
        **SMALL,
        "model_type": "qwen2",
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 256, "type": "yarn"},
    },
    "qwen2 with windows": {
        **SMALL,
        "model_type": "qwen2",
        "use_sliding_window": True,
        "max_window_layers": 1,
    },
    "qwen3": {
        **SMALL,
        "model_type": "qwen3",
        "attention_bias": False,
        "max_window_layers": 36,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "use_sliding_window": False,
    },
    "smollm3": {
        **SMALL,
        "model_type": "smollm3",
        "num_hidden_layers": 9,
        "rope_theta": 5000000.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "no_rope_layer_interval": 4,
        "no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0, 1],
    },
    "smollm3 that states little": {**SMALL, "num_attention_heads": 8, "model_type": "smollm3"},
    "phi 3 mini 4k": {
        **SMALL,
        "model_type": "phi3",
        "num_key_value_heads": 6,
        "original_max_position_embeddings": 4096,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": 2047,
    },
    "phi 4 mini": {
        **SMALL,
        "model_type": "phi3",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.5,
        "original_max_position_embeddings": 32,
        "rope_scaling": {
            "type": "longrope",
            **{name: LONGROPE[name] for name in ("short_factor", "long_factor")},
        },
        "tie_word_embeddings": True,
    },
    "gemma 2": {
        **SMALL,
        "model_type": "gemma2",
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "head_dim": 16,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    },
    "gemma 2 that states little": {**WITHOUT_KV_HEADS, "num_attention_heads": 8, "model_type": "gemma2"},
    "gemma 3 1b": {
        **SMALL,
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "head_dim": 16,
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
    },
    "gemma 3 that states little": {
        **WITHOUT_KV_HEADS,
        **GEMMA3_TEXT,
        "num_attention_heads": 8,
    },
    "olmo 2": {**WITHOUT_KV_HEADS, "model_type": "olmo2", "rope_theta": 500000, "rms_norm_eps": 1e-6},
    "olmo 2 that states little": {**SMALL, "model_type": "olmo2"},
    "olmo 3 7b": {
        **SMALL,
        "model_type": "olmo3",
        "num_hidden_layers": 4,
        "rope_scaling": {
            "attention_factor": 1.2079441541679836,
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "rope_type": "yarn",
        },
        "rope_theta": 500000,
        "sliding_window": 4096,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    },
    "olmo 3 that states little": {**SMALL, "num_hidden_layers": 5, "model_type": "olmo3"},
    "exaone 4 1.2b": {
        **SMALL,
        "model_type": "exaone4",
        "head_dim": 8,
        "layer_types": ["full_attention"] * 3,
        "rope_theta": 1000000,
        "sliding_window": None,
        "sliding_window_pattern": None,
        "tie_word_embeddings": True,
    },
    "exaone 4 32b": {
        **SMALL,
        "model_type": "exaone4",
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "sliding_window": 4096,
        "sliding_window_pattern": "LLLG",
    },
    "exaone 4 that states little": {
        **SMALL,
        "hidden_size": 64,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "num_hidden_layers": 5,
        "model_type": "exaone4",
    },
    "granite 3.3": {
        **SMALL,
        "model_type": "granite",
        "attention_multiplier": 0.0078125,
        "embedding_multiplier": 12.0,
        "logits_scaling": 16.0,
        "residual_multiplier": 0.22,
        "rope_theta": 10000000.0,
        "tie_word_embeddings": True,
    },
    "granite that states little": {**WITHOUT_KV_HEADS, "model_type": "granite"},
    "granite 4 350m": {
        **SMALL,
        "model_type": "granitemoehybrid",
        "attention_multiplier": 0.015625,
        "embedding_multiplier": 12,
        "layer_types": ["attention"] * 3,
        "logits_scaling": 4,
        "mamba_n_heads": 6,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "position_embedding_type": "rope",
        "residual_multiplier": 0.246,
        "shared_intermediate_size": 2048,
        "tie_word_embeddings": True,
    },
    "command r7b": {
        **SMALL,
        "model_type": "cohere2",
        "num_hidden_layers": 5,
        "cache_implementation": "hybrid",
        "layer_norm_eps": 1e-05,
        "logit_scale": 0.25,
        "rope_theta": 50000,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "tie_word_embeddings": True,
    },
    "glm 4 9b": {
        **SMALL,
        "model_type": "glm",
        "head_dim": 16,
        "attention_bias": True,
        "eos_token_id": [3, 4, 5],
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1.5625e-07,
    },
    "glm 4 0414": {
        **SMALL,
        "model_type": "glm4",
        "head_dim": 16,
        "attention_bias": False,
        "eos_token_id": [3, 4, 5],
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05,
    },
    "ministral 8b": {
        **SMALL,
        "model_type": "ministral",
        "head_dim": 8,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "rope_theta": 100000000.0,
        "sliding_window": 32768,
    },
    "ministral 3": {
        **SMALL,
        "model_type": "ministral3",
        "head_dim": 16,
        "rope_parameters": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 16.0,
            "llama_4_scaling_beta": 0.1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 16,
            "rope_theta": 1000000.0,
            "rope_type": "yarn",
            "type": "yarn",
        },
        "sliding_window": None,
    },
    "mixtral": {
        **SMALL,
        "model_type": "mixtral",
        "num_experts_per_tok": 2,
        "num_local_experts": 4,
        "rope_theta": 1e6,
        "sliding_window": None,
    },
    "mixtral that states little": {**SMALL, "num_attention_heads": 8, "model_type": "mixtral"},
    "qwen1.5 moe": {
        **SMALL,
        "model_type": "qwen2_moe",
        "decoder_sparse_step": 1,
        "max_window_layers": 21,
        "moe_intermediate_size": 24,
        "norm_topk_prob": False,
        "num_experts": 12,
        "num_experts_per_tok": 4,
        "rope_theta": 1000000.0,
        "shared_expert_intermediate_size": 40,
        "sliding_window": 32768,
        "use_sliding_window": False,
    },
    "qwen2 moe that states little": {
        **SMALL,
        "hidden_size": 64,
        "num_attention_heads": 16,
        "model_type": "qwen2_moe",
    },
    "glm 4.5 air": {
        **SMALL,
        "model_type": "glm4_moe",
        "attention_bias": True,
        "eos_token_id": [3, 4, 5],
        "first_k_dense_replace": 1,
        "head_dim": 16,
        "moe_intermediate_size": 24,
        "n_group": 1,
        "n_routed_experts": 12,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 4,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 0.5,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "routed_scaling_factor": 1.0,
        "topk_group": 1,
        "use_qk_norm": False,
    },
    "glm 4.5 moe that states little": {
        **WITHOUT_KV_HEADS,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "model_type": "glm4_moe",
    },
    "deepseek v2 lite": {
        **SMALL,
        "model_type": "deepseek_v2",
        "attention_bias": False,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 24,
        "max_position_embeddings": 1024,
        "moe_intermediate_size": 24,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": 12,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_experts_per_tok": 6,
        "q_lora_rank": None,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 40,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 64,
            "type": "yarn",
        },
        "rope_theta": 10000,
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "topk_group": 1,
        "topk_method": "greedy",
        "v_head_dim": 16,
    },
    "deepseek v2 chat": {
        **SMALL,
        "model_type": "deepseek_v2",
        "n_group": 8,
        "n_routed_experts": 160,
        "num_experts_per_tok": 6,
        "routed_scaling_factor": 16.0,
        "topk_group": 3,
        "topk_method": "group_limited_greedy",
    },
    "deepseek v3": {
        **SMALL,
        "model_type": "deepseek_v3",
        "first_k_dense_replace": 1,
        "max_position_embeddings": 2560,
        "moe_layer_freq": 1,
        "n_group": 4,
        "n_routed_experts": 12,
        "num_experts_per_tok": 4,
        "num_nextn_predict_layers": 1,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 40,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 64,
            "type": "yarn",
        },
        "rope_theta": 10000,
        "scoring_func": "sigmoid",
        "topk_group": 2,
        "topk_method": "noaux_tc",
    },
    "deepseek v3 that states little": {**WITHOUT_KV_HEADS, "model_type": "deepseek_v3"},
    "glm 4.7 flash": {
        **SMALL,
        "model_type": "glm4_moe_lite",
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 1.0,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "topk_method": "noaux_tc",
    },
    "gpt-oss 20b": {
        **SMALL,
        "model_type": "gpt_oss",
        "attention_bias": True,
        "eos_token_id": 3,
        "experts_per_token": 4,
        "head_dim": 16,
        "initial_context_length": 4096,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "max_position_embeddings": 131072,
        "num_experts_per_tok": 4,
        "num_local_experts": 8,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
    },
    "gpt-oss that states little": {
        **{name: value for name, value in WITHOUT_KV_HEADS.items() if name != "max_position_embeddings"},
        "num_attention_heads": 8,
        "model_type": "gpt_oss",
    },
    "qwen3 moe": {
        **SMALL,
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "head_dim": 16,
        "mlp_only_layers": [],
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "num_experts": 12,
        "num_experts_per_tok": 4,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
    },
    "qwen3 moe that states little": {**SMALL, "num_attention_heads": 8, "model_type": "qwen3_moe"},
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "glm": "GlmForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "ministral": "MinistralForCausalLM",
    "mistral3": "Mistral3ForConditionalGeneration",
    "ministral3": "Ministral3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


def write(folder: Path, fields: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    named = {"architectures": [ARCHITECTURES[fields["model_type"]]], **fields}
    (folder / "config.json").write_text(json.dumps(named))
    return folder


def load(folder: Path, **fields: Any) -> ModelConfig:
    return load_model_config(write(folder, {**SMALL, **fields}))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_means_what_transformers_writes_for_it(name: str, tmp_path: Path) -> None:
    published = write(tmp_path / "published", PUBLISHED[name])
    AutoConfig.from_pretrained(published).save_pretrained(tmp_path / "written")
    ours = load_model_config(published)
    assert ours == load_model_config(tmp_path / "written")
    assert ours.dtype == "bfloat16"


def test_a_model_stretched_by_yarn_takes_the_longer_prompts_it_is_stretched_for(tmp_path: Path) -> None:
    published = write(tmp_path / "model", PUBLISHED["qwen2.5 stretched by yarn"])
    assert load_model_config(published).max_position_embeddings == 1024


@pytest.mark.parametrize("longest", [100, 256, 700])
def test_a_dynamic_rope_is_the_one_of_the_longest_sequence(longest: int, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", PUBLISHED["llama with the first spelling"])
    rope = load_model_config(folder).layers[0].rope
    assert rope is not None
    theirs, factor = ROPE_INIT_FUNCTIONS["dynamic"](AutoConfig.from_pretrained(folder), seq_len=longest)
    assert torch.allclose(inverse_frequencies(rope, longest), theirs, rtol=1e-6)
    assert factor == rope.attention_factor


@pytest.mark.parametrize("first_name", ["su", "yarn"])
def test_the_first_names_of_longrope_are_known(first_name: str, tmp_path: Path) -> None:
    published = PUBLISHED["phi 4 mini"]
    early = {**published, "rope_scaling": {**published["rope_scaling"], "type": first_name}}
    ours = load_model_config(write(tmp_path / "early", early))
    assert ours == load_model_config(write(tmp_path / "published", published))


@pytest.mark.parametrize("longest", [32, 33])
def test_longrope_chooses_its_factors_by_the_longest_sequence(longest: int, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", PUBLISHED["phi 4 mini"])
    rope = load_model_config(folder).layers[0].rope
    assert rope is not None
    theirs, factor = ROPE_INIT_FUNCTIONS["longrope"](AutoConfig.from_pretrained(folder), seq_len=longest)
    assert torch.equal(inverse_frequencies(rope, longest), theirs)
    table = rope_table(rope, 16, longest, torch.float32)
    assert table.shape == (longest, rope.rotary_dim)
    assert table[0, 0].item() == pytest.approx(factor)


def test_the_language_model_of_a_gemma_3_with_vision_is_read(tmp_path: Path) -> None:
    """Its published config states of the text model only what differs from the defaults."""
    fields = {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "eos_token_id": [1, 106],
        "text_config": GEMMA3_TEXT,
        "vision_config": {"hidden_size": 16},
        "torch_dtype": "bfloat16",
    }
    ours = load_model_config(write(tmp_path / "published", fields))
    AutoConfig.for_model(
        **GEMMA3_TEXT, dtype="bfloat16", architectures=["Gemma3ForCausalLM"]
    ).save_pretrained(tmp_path / "text")
    text = load_model_config(tmp_path / "text")
    assert ours == replace(text, architecture=ours.architecture, eos_token_ids=(1, 106), bos_token_id=None)


@pytest.mark.parametrize("kind", ["mistral", "ministral3"])
def test_the_language_model_of_a_mistral_3_with_vision_is_read(kind: str, tmp_path: Path) -> None:
    text = {**PUBLISHED["ministral 3" if kind == "ministral3" else "mistral 0.3"]}
    whole = {
        "model_type": "mistral3",
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": text,
        "vision_config": {"hidden_size": 16},
        "torch_dtype": "bfloat16",
    }
    ours = load_model_config(write(tmp_path / "published", whole))
    alone = load_model_config(write(tmp_path / "text", text))
    assert ours == replace(alone, architecture=ours.architecture)


@pytest.mark.parametrize("architecture", REFUSED)
def test_an_architecture_that_does_not_fit_is_refused_with_what_it_would_take(
    architecture: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "model", {**PUBLISHED["qwen3"], "architectures": [architecture]})
    with pytest.raises(InvalidRequest, match=f"{architecture} is not supported: .*(state|AltUp|indexer)"):
        load_model_config(folder)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention", "mamba"]},
            "Mamba.*keep a state",
        ),
        (
            {"model_type": "granitemoehybrid", "layer_types": ["attention"] * 2, "num_local_experts": 0},
            "each of 3 layers",
        ),
        ({"model_type": "granitemoehybrid", "layer_types": ["attention"] * 3}, "num_local_experts"),
        (
            {
                "model_type": "granitemoehybrid",
                "layer_types": ["attention"] * 3,
                "num_local_experts": 0,
                "position_embedding_type": "learned",
            },
            "position_embedding_type 'learned'",
        ),
        ({"model_type": "exaone4", "sliding_window_pattern": "LXG"}, "sliding_window_pattern 'LXG'"),
        ({"model_type": "exaone4", "sliding_window_pattern": 0}, "sliding_window_pattern"),
        ({"model_type": "granite", "logits_scaling": 0}, "logits_scaling"),
        (
            {"model_type": "ministral3", "rope_parameters": {"llama_4_scaling_beta": -1}},
            "llama_4_scaling_beta",
        ),
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (
            {"model_type": "qwen3", "use_sliding_window": True, "layer_types": ["full_attention"]},
            "layer_types",
        ),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": -3}, "sliding_window"),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "no_rope_layers"),
        ({"model_type": "smollm3", "no_rope_layers": "all"}, "no_rope_layers must be a list"),
        ({"model_type": "phi3", "partial_rotary_factor": 0.4}, "3 of 8 dimensions"),
        ({"model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1]}}, "short_factor"),
        ({"model_type": "mixtral", "num_local_experts": 1}, "num_experts_per_tok 2 is above the 1 experts"),
        ({"model_type": "glm4_moe", "n_group": 5}, "128 experts cannot be cut into n_group 5 groups"),
        ({"model_type": "glm4_moe", "topk_group": 2}, "topk_group 2 is above n_group 1"),
        ({"model_type": "glm4_moe", "n_group": 128}, "leaves groups of 1 experts"),
        (
            {"model_type": "glm4_moe", "n_group": 32, "topk_group": 1},
            "num_experts_per_tok 8 is above the 4 experts of topk_group 1",
        ),
        ({"model_type": "glm4_moe", "n_shared_experts": 2**30}, "n_shared_experts must be an integer"),
        ({"model_type": "glm4_moe_lite", "mlp_layer_types": ["dense"]}, "mlp_layer_types must name"),
        ({"model_type": "deepseek_v2", "topk_method": "noaux_tc"}, "topk_method 'noaux_tc'.*use one of"),
        ({"model_type": "deepseek_v2", "norm_topk_prob": True}, "norm_topk_prob is not supported"),
        ({"model_type": "deepseek_v2", "moe_layer_freq": 2}, "moe_layer_freq 2 .*must be 1"),
        ({"model_type": "deepseek_v3", "scoring_func": "softmax"}, "scoring_func 'softmax'"),
        (
            {"model_type": "deepseek_v3", "attention_bias": True, "q_lora_rank": None},
            "attention_bias is not supported where q_lora_rank is null",
        ),
        ({"model_type": "deepseek_v3", "qk_rope_head_dim": 7}, "head_dim 7 is odd"),
        ({"model_type": "llama", "rope_parameters": {"full_attention": {}}}, "a rope per layer type"),
        ({"model_type": "llama", "rope_scaling": [1]}, "rope_scaling must be an object"),
        ({"model_type": "llama", "attention_bias": 1}, "attention_bias must be true or false"),
    ],
)
def test_what_a_family_cannot_be_is_refused_by_field(
    fields: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        load(tmp_path / "model", **fields)
