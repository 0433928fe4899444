"""Directories as people have them: the keys of published configs and the tensors that lie beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.engine import load_model_config
from shared.engine.loading.tensor_plan import TensorPlan

VOCAB, HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 96, 64, 128, 4, 2, 2
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": LAYERS,
    "initializer_range": 0.02,
    "attention_dropout": 0.0,
    "use_cache": True,
    "transformers_version": "4.43.0",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
GPTQ = {
    "bits": 4,
    "group_size": 32,
    "damp_percent": 0.1,
    "desc_act": True,
    "sym": True,
    "true_sequential": True,
    "model_name_or_path": None,
    "model_file_base_name": "model",
    "quant_method": "gptq",
}
AWQ = {
    "quant_method": "awq",
    "zero_point": True,
    "group_size": 32,
    "bits": 4,
    "version": "gemm",
    "modules_to_not_convert": None,
}


def model(architecture: str, model_type: str, **fields: Any) -> dict[str, Any]:
    return {**SMALL, "architectures": [architecture], "model_type": model_type, **fields}


LLAMA2 = model(
    "LlamaForCausalLM", "llama", _name_or_path="x", pretraining_tp=1, rope_scaling=None, torch_dtype="float16"
)
LLAMA2["num_key_value_heads"] = HEADS
CASES: dict[str, dict[str, Any]] = {
    "Llama-2-7b-hf": LLAMA2,
    "Llama-2-7B-GPTQ": {**LLAMA2, "quantization_config": GPTQ, "pad_token_id": 0},
    "Llama-2-7B-AWQ": {**LLAMA2, "quantization_config": AWQ, "pad_token_id": 0},
    "Llama-3.1-8B": model(
        "LlamaForCausalLM", "llama", attention_bias=False, mlp_bias=False, pretraining_tp=1,
        eos_token_id=[3, 4, 5], rope_theta=500000.0, max_position_embeddings=131072,
        rope_scaling={"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    ),
    "Mistral-7B-v0.1": model("MistralForCausalLM", "mistral", sliding_window=4096, rope_theta=10000.0),
    "Mistral-7B-v0.3": model("MistralForCausalLM", "mistral", sliding_window=None, rope_theta=1e6),
    "Mixtral-8x7B": model(
        "MixtralForCausalLM", "mixtral", num_experts_per_tok=2, num_local_experts=3,
        output_router_logits=False, router_aux_loss_coef=0.02, sliding_window=None, rope_theta=1e6,
    ),
    "Qwen2.5-0.5B": model(
        "Qwen2ForCausalLM", "qwen2", tie_word_embeddings=True, max_window_layers=24, sliding_window=32768,
        use_mrope=False, use_sliding_window=False, rope_theta=1000000.0,
    ),
    "Qwen3-0.6B": model(
        "Qwen3ForCausalLM", "qwen3", head_dim=32, tie_word_embeddings=True, attention_bias=False,
        max_window_layers=28, rope_scaling=None, sliding_window=None, use_sliding_window=False,
    ),
    "Qwen3-30B-A3B": model(
        "Qwen3MoeForCausalLM", "qwen3_moe", head_dim=32, attention_bias=False, decoder_sparse_step=1,
        max_window_layers=48, mlp_only_layers=[], moe_intermediate_size=32, norm_topk_prob=True,
        num_experts=3, num_experts_per_tok=2, output_router_logits=False, rope_scaling=None,
        router_aux_loss_coef=0.001,
        sliding_window=None, use_sliding_window=False,
    ),
    "Qwen1.5-MoE-A2.7B": model(
        "Qwen2MoeForCausalLM", "qwen2_moe", decoder_sparse_step=1, max_window_layers=21,
        moe_intermediate_size=32, norm_topk_prob=False, num_experts=3, num_experts_per_tok=2,
        output_router_logits=False, router_aux_loss_coef=0.001, shared_expert_intermediate_size=48,
        sliding_window=32768, use_sliding_window=False, rope_theta=1000000.0,
    ),
    "GLM-4.5-Air": model(
        "Glm4MoeForCausalLM", "glm4_moe", attention_bias=True, head_dim=32, eos_token_id=[3, 4, 5],
        first_k_dense_replace=1, moe_intermediate_size=32, n_group=1, n_routed_experts=3, n_shared_experts=1,
        norm_topk_prob=True, num_experts_per_tok=2, num_nextn_predict_layers=1, partial_rotary_factor=0.5,
        rope_scaling=None, rope_theta=1000000, routed_scaling_factor=1.0, topk_group=1, use_qk_norm=False,
    ),
    "gpt-oss-20b": model(
        "GptOssForCausalLM", "gpt_oss", attention_bias=True, head_dim=32, eos_token_id=3,
        experts_per_token=2, num_experts_per_tok=2, initial_context_length=4096, num_local_experts=3,
        layer_types=["sliding_attention", "full_attention"], max_position_embeddings=131072,
        rms_norm_eps=1e-5, rope_theta=150000, sliding_window=128, swiglu_limit=7.0,
        rope_scaling={"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn",
                      "original_max_position_embeddings": 4096, "truncate": False},
        quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
    ),
    "SmolLM2-135M": model(
        "LlamaForCausalLM", "llama", is_llama_config=True, rope_interleaved=False, rope_scaling=None,
        rope_theta=100000, tie_word_embeddings=True, pretraining_tp=1, mlp_bias=False, attention_bias=False,
    ),
    "SmolLM3-3B": model(
        "SmolLM3ForCausalLM", "smollm3", layer_types=["full_attention"] * LAYERS, no_rope_layer_interval=4,
        no_rope_layers=[1, 0], pretraining_tp=2, rope_scaling=None, rope_theta=5000000.0, mlp_bias=False,
        sliding_window=None, use_sliding_window=False, attention_bias=False, tie_word_embeddings=True,
    ),
    "Phi-3-mini-4k": model(
        "Phi3ForCausalLM", "phi3", auto_map={"AutoConfig": "x"}, embd_pdrop=0.0, resid_pdrop=0.0,
        original_max_position_embeddings=4096, rope_scaling=None, sliding_window=2047, attention_bias=False,
    ),
    "Phi-3-mini-128k": model(
        "Phi3ForCausalLM", "phi3", original_max_position_embeddings=4096, max_position_embeddings=131072,
        sliding_window=262144,
        rope_scaling={"long_factor": [1.5] * 8, "short_factor": [1.1] * 8, "type": "longrope"},
    ),
    "Phi-4-mini": model(
        "Phi3ForCausalLM", "phi3", original_max_position_embeddings=4096, max_position_embeddings=131072,
        partial_rotary_factor=0.75, full_attn_mod=1, interpolate_factor=1, lm_head_bias=False, mlp_bias=False,
        sliding_window=262144, tie_word_embeddings=True,
        rope_scaling={"long_factor": [1, 1.5] * 3, "short_factor": [1.0] * 6, "type": "longrope"},
    ),
    "gemma-2-2b": model(
        "Gemma2ForCausalLM", "gemma2", head_dim=32, hidden_act="gelu_pytorch_tanh", torch_dtype="float32",
        hidden_activation="gelu_pytorch_tanh", attn_logit_softcapping=50.0, final_logit_softcapping=30.0,
        cache_implementation="hybrid", query_pre_attn_scalar=256, sliding_window=4096, attention_bias=False,
        tie_word_embeddings=True,
    ),
    "gemma-3-1b": model(
        "Gemma3ForCausalLM", "gemma3_text", head_dim=32, hidden_activation="gelu_pytorch_tanh",
        attn_logit_softcapping=None, final_logit_softcapping=None, cache_implementation="hybrid",
        eos_token_id=[1, 9], query_pre_attn_scalar=256, rope_local_base_freq=10000, rope_scaling=None,
        rope_theta=1000000, sliding_window=512, sliding_window_pattern=6, tie_word_embeddings=True,
    ),
    "OLMo-3-7B": model(
        "Olmo3ForCausalLM", "olmo3", attention_bias=False, rope_theta=500000, sliding_window=4096,
        layer_types=["sliding_attention", "full_attention"],
        rope_scaling={"attention_factor": 1.2, "beta_fast": 32, "beta_slow": 1, "factor": 8.0,
                      "original_max_position_embeddings": 512, "rope_type": "yarn"},
    ),
    "EXAONE-4.0-32B": model(
        "Exaone4ForCausalLM", "exaone4", head_dim=32, layer_types=["sliding_attention", "full_attention"],
        rope_theta=1000000, sliding_window=4096, sliding_window_pattern="LLLG",
    ),
    "granite-3.3-2b": model(
        "GraniteForCausalLM", "granite", attention_bias=False, attention_multiplier=0.015625, mlp_bias=False,
        embedding_multiplier=12.0, logits_scaling=8.0, residual_multiplier=0.22, rope_scaling=None,
        rope_theta=10000000.0, tie_word_embeddings=True,
    ),
    "granite-4.0-350m": model(
        "GraniteMoeHybridForCausalLM", "granitemoehybrid", attention_multiplier=0.015625,
        embedding_multiplier=12, layer_types=["attention"] * LAYERS, logits_scaling=4, num_local_experts=0,
        num_experts_per_tok=0, position_embedding_type="rope", residual_multiplier=0.246, mamba_n_heads=4,
        shared_intermediate_size=INNER, tie_word_embeddings=True, rope_theta=10000,
    ),
    "c4ai-command-r7b-12-2024": model(
        "Cohere2ForCausalLM", "cohere2", attention_bias=False, cache_implementation="hybrid", head_dim=32,
        layer_norm_eps=1e-05, logit_scale=0.25, order_of_interleaved_layers="local_attn_first",
        position_embedding_type="rope_gptj", rotary_pct=1.0, sliding_window=4096, sliding_window_pattern=4,
        tie_word_embeddings=True, use_embedding_sharing=True, use_gated_activation=True,
        use_parallel_block=True, use_parallel_embedding=True, use_qk_norm=False, rope_theta=50000,
    ),
    "glm-4-9b-chat-hf": model(
        "GlmForCausalLM", "glm", attention_bias=True, head_dim=32, eos_token_id=[3, 4, 5],
        partial_rotary_factor=0.5, rope_theta=5000000.0,
    ),
    "GLM-4-9B-0414": model(
        "Glm4ForCausalLM", "glm4", attention_bias=True, head_dim=32, eos_token_id=[3, 4, 5],
        partial_rotary_factor=0.5, rope_theta=10000.0,
    ),
    "Ministral-8B": model(
        "MinistralForCausalLM", "ministral", head_dim=32, sliding_window=32768, rope_theta=1e8,
        layer_types=["full_attention", "sliding_attention"],
    ),
    "OLMo-2-1B": model(
        "Olmo2ForCausalLM", "olmo2", attention_bias=False, rope_scaling=None, rope_theta=500000,
        torch_dtype="float32",
    ),
}  # fmt: skip
EXTRA = {
    "Llama-2-7b-hf": {"model.layers.0.self_attn.rotary_emb.inv_freq"},
    "Qwen3-0.6B": {"lm_head.weight"},
    "GLM-4.5-Air": {"model.layers.2.eh_proj.weight", "model.layers.2.self_attn.q_proj.weight"},
}


def tensors(fields: dict[str, Any]) -> dict[str, tuple[int, ...]]:  # noqa: C901  (a list of what differs by family)
    """Name and shape of what the published checkpoint holds."""
    kind = fields["model_type"]
    head_dim = fields.get("head_dim", HIDDEN // HEADS)
    query, key = HEADS * head_dim, fields["num_key_value_heads"] * head_dim
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    if not fields["tie_word_embeddings"]:
        found["lm_head.weight"] = (VOCAB, HIDDEN)
    linears = {"self_attn.q_proj": (query, HIDDEN), "self_attn.k_proj": (key, HIDDEN),
               "self_attn.v_proj": (key, HIDDEN), "self_attn.o_proj": (HIDDEN, query),
               "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN),
               "mlp.down_proj": (HIDDEN, INNER)}  # fmt: skip
    norms: dict[str, int] = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN}
    if kind in ("glm", "glm4"):
        linears = {module: shape for module, shape in linears.items() if module.endswith(("_proj",)) and
                   not module.startswith(("mlp.gate", "mlp.up"))}  # fmt: skip
        linears["mlp.gate_up_proj"] = (2 * INNER, HIDDEN)
    if kind == "glm4":
        norms |= {"post_self_attn_layernorm": HIDDEN, "post_mlp_layernorm": HIDDEN}
    if kind == "granitemoehybrid":
        linears = {module: shape for module, shape in linears.items() if "mlp" not in module}
        linears |= {"shared_mlp.input_linear": (2 * INNER, HIDDEN),
                    "shared_mlp.output_linear": (HIDDEN, INNER)}  # fmt: skip
    if kind == "cohere2":
        norms = {"input_layernorm": HIDDEN}
    if kind == "exaone4":
        norms = {"post_attention_layernorm": HIDDEN, "post_feedforward_layernorm": HIDDEN,
                 "self_attn.q_norm": head_dim, "self_attn.k_norm": head_dim}  # fmt: skip
    if kind == "phi3":
        linears = {"self_attn.qkv_proj": (query + 2 * key, HIDDEN), "self_attn.o_proj": (HIDDEN, query),
                   "mlp.gate_up_proj": (2 * INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}  # fmt: skip
    if kind in ("mixtral", "qwen3_moe"):
        linears = {module: shape for module, shape in linears.items() if "mlp" not in module}
        part, up, gate, down = (
            ("block_sparse_moe", "w3", "w1", "w2")
            if kind == "mixtral"
            else ("mlp", "up_proj", "gate_proj", "down_proj")
        )
        inner = INNER if kind == "mixtral" else 32
        linears[f"{part}.gate"] = (3, HIDDEN)
        for expert in range(3):
            linears |= {f"{part}.experts.{expert}.{each}": (inner, HIDDEN) for each in (up, gate)}
            linears[f"{part}.experts.{expert}.{down}"] = (HIDDEN, inner)
    if kind in ("qwen2_moe", "glm4_moe"):
        dense = {module: shape for module, shape in linears.items() if "mlp" in module}
        linears = {module: shape for module, shape in linears.items() if module not in dense}
        for layer in range(LAYERS):
            found |= mixture(kind, f"model.layers.{layer}.mlp.", dense, layer)
    if kind.startswith("gemma"):
        norms |= {"pre_feedforward_layernorm": HIDDEN, "post_feedforward_layernorm": HIDDEN}
    if kind in ("qwen3", "qwen3_moe", "gemma3_text"):
        norms |= {"self_attn.q_norm": head_dim, "self_attn.k_norm": head_dim}
    if kind in ("olmo2", "olmo3"):
        norms = {"post_attention_layernorm": HIDDEN, "post_feedforward_layernorm": HIDDEN,
                 "self_attn.q_norm": query, "self_attn.k_norm": key}  # fmt: skip
    packed = fields.get("quantization_config", {}).get("quant_method")
    if kind == "gpt_oss":
        linears, packed = {name: shape for name, shape in linears.items() if "mlp" not in name}, None
        for layer in range(LAYERS):
            found |= gpt_oss_parts(f"model.layers.{layer}.", query, key)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        found |= {f"{prefix}{norm}.weight": (size,) for norm, size in norms.items()}
        for module, (rows, columns) in linears.items():
            found |= stored_linear(prefix + module, rows, columns, packed)
        if kind in ("qwen2", "qwen2_moe", "glm4_moe", "glm", "glm4"):
            found |= {
                f"{prefix}self_attn.{each}_proj.bias": (size,)
                for each, size in zip("qkv", (query, key, key), strict=True)
            }
    return found


def mixture(
    kind: str, prefix: str, dense: dict[str, tuple[int, int]], layer: int
) -> dict[str, tuple[int, ...]]:
    """Three experts and the one that is shared; GLM's first layer has none of them."""
    if kind == "glm4_moe" and layer == 0:
        return {f"model.layers.0.{module}.weight": shape for module, shape in dense.items()}
    shared, inner = ("shared_expert", 48) if kind == "qwen2_moe" else ("shared_experts", 32)
    found: dict[str, tuple[int, ...]] = {f"{prefix}gate.weight": (3, HIDDEN)}
    if kind == "qwen2_moe":
        found[f"{prefix}shared_expert_gate.weight"] = (1, HIDDEN)
    else:
        found[f"{prefix}gate.e_score_correction_bias"] = (3,)
    for module, size in [(f"experts.{expert}", 32) for expert in range(3)] + [(shared, inner)]:
        found |= {f"{prefix}{module}.{part}_proj.weight": (size, HIDDEN) for part in ("gate", "up")}
        found[f"{prefix}{module}.down_proj.weight"] = (HIDDEN, size)
    return found


def gpt_oss_parts(prefix: str, query: int, key: int) -> dict[str, tuple[int, ...]]:
    """All of a layer but its norms and the weights of its attention."""
    experts = f"{prefix}mlp.experts."
    sizes = {"q": query, "k": key, "v": key, "o": HIDDEN}
    return {
        **{f"{prefix}self_attn.{each}_proj.bias": (size,) for each, size in sizes.items()},
        f"{prefix}self_attn.sinks": (HEADS,),
        f"{prefix}mlp.router.weight": (3, HIDDEN),
        f"{prefix}mlp.router.bias": (3,),
        f"{experts}gate_up_proj_blocks": (3, 2 * INNER, HIDDEN // 32, 16),
        f"{experts}gate_up_proj_scales": (3, 2 * INNER, HIDDEN // 32),
        f"{experts}gate_up_proj_bias": (3, 2 * INNER),
        f"{experts}down_proj_blocks": (3, HIDDEN, INNER // 32, 16),
        f"{experts}down_proj_scales": (3, HIDDEN, INNER // 32),
        f"{experts}down_proj_bias": (3, HIDDEN),
    }


def stored_linear(module: str, rows: int, columns: int, packed: str | None) -> dict[str, tuple[int, ...]]:
    if packed is None:
        return {f"{module}.weight": (rows, columns)}
    groups = columns // 32
    found: dict[str, tuple[int, ...]] = {
        f"{module}.qzeros": (groups, rows // 8),
        f"{module}.scales": (groups, rows),
    }
    if packed == "awq":
        return {**found, f"{module}.qweight": (columns, rows // 8)}
    return {
        **found,
        f"{module}.qweight": (columns // 8, rows),
        f"{module}.g_idx": (columns,),
        f"{module}.bias": (rows,),
    }


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_as_it_is_published_is_taken(name: str, tmp_path: Path) -> None:
    fields = CASES[name]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, "eos_token_id": [7, 8]}))
    config, stored = load_model_config(tmp_path), tensors(fields)
    extra = EXTRA.get(name, set())
    plan = TensorPlan(config, stored.keys() | extra)
    assert {tensor: spec.shape for tensor, spec in plan.expected().items()} == stored
    assert all(plan.may_ignore(tensor) for tensor in extra)
    assert set(config.eos_token_ids) >= {7, 8}
    assert config.dtype == ("float32" if fields["torch_dtype"] == "float32" else "bfloat16")
