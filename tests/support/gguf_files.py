"""GGUF files of tiny models, written with the `gguf` package the way llama.cpp converts their checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, dequantize, quantize
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from tests.support.engine import oracle

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Phi3ForCausalLM": "phi3",
    "GptOssForCausalLM": "gpt-oss",
    "SmolLM3ForCausalLM": "smollm3",
    "GraniteForCausalLM": "granite",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo2",
    "Exaone4ForCausalLM": "exaone4",
    "Ministral3ForCausalLM": "mistral3",
    "Qwen2MoeForCausalLM": "qwen2moe",
    "Cohere2ForCausalLM": "cohere2",
    "Glm4ForCausalLM": "glm4",
    "Glm4MoeForCausalLM": "glm4moe",
}
"""The architecture in config.json → general.architecture."""
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
INTERLEAVED = ("llama", "mistral3", "granite", "smollm3")
"""Architectures of which llama.cpp rotates neighbours."""
POST_NORM_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
"""The names of norms in architectures that have no other norms."""
GLM4_NAMES = {
    "post_self_attn_layernorm": "post_attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "post_mlp_layernorm": "post_ffw_norm",
}
SHARED_EXPERT_NAMES = {
    "gate_proj": "ffn_gate_shexp",
    "up_proj": "ffn_up_shexp",
    "down_proj": "ffn_down_shexp",
}
OWN_NAMES = {
    "Qwen2MoeForCausalLM": {
        "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
        **{f"mlp.shared_expert.{name}": part for name, part in SHARED_EXPERT_NAMES.items()},
    },
    "Glm4ForCausalLM": GLM4_NAMES,
    "Glm4MoeForCausalLM": {
        "post_attention_layernorm": "post_attention_norm",
        **{f"mlp.shared_experts.{name}": part for name, part in SHARED_EXPERT_NAMES.items()},
    },
}
GPT_OSS_NAMES = {"post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp"}
EXPERT_NAMES = {
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps",
    "w3": "ffn_up_exps",
    "w2": "ffn_down_exps",
}

Blocks = NDArray[np.uint8]


@dataclass
class GgufModel:
    """A checkpoint on its way into a file: what the file says, and the weights that it then holds."""

    folder: Path
    fields: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> GgufModel:
        """`folder`: in the Hugging Face layout, in float32."""
        model = cls(folder, json.loads((folder / "config.json").read_text()))
        model.metadata = _metadata(model.fields)
        model.tensors = _file_tensors(model.fields, _stored(folder))
        return model

    @property
    def architecture(self) -> str:
        return ARCHITECTURES[self.fields["architectures"][0]]

    def write(
        self,
        path: Path,
        type_name: str = "F32",
        *,
        tokenizer: Mapping[str, Any] | None = None,
        others: Mapping[str, str] | None = None,
        part_tensors: int = 0,
    ) -> dict[str, NDArray[np.float32]]:
        """The file at `path`, its matrices in `type_name` or, by name, `others`. With `part_tensors` the
        model is in parts of so many tensors, named as `path` is but for their numbers.

        Returns what it holds of each tensor.
        """
        writer = GGUFWriter(path, self.architecture, split_max_tensors=part_tensors)
        for key, value in {**self.metadata, **(tokenizer or {})}.items():
            whole = key if key.startswith("tokenizer.") else f"{self.architecture}.{key}"
            add_value(writer, whole, value)
        held = {}
        for name, tensor in self.tensors.items():
            is_matrix = tensor.ndim > 1 and not name.endswith(".bias")  # experts' biases are stacked
            stored = (others or {}).get(name, type_name) if is_matrix else "F32"
            kind = GGMLQuantizationType[stored]
            blocks = to_blocks(tensor, kind)
            writer.add_tensor(name, blocks, raw_dtype=kind)
            held[name] = dequantize(blocks, kind).reshape(tensor.shape)
        _finish(writer)
        return held

    def oracle(self, held: Mapping[str, NDArray[np.float32]]) -> PreTrainedModel:
        """transformers on the weights that the file holds, in float32."""
        model = oracle(self.folder)
        state = model.state_dict()
        for name, tensor in checkpoint_tensors(self.fields, held).items():
            _put(state, name, tensor)
        return model


def add_value(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def to_blocks(tensor: NDArray[np.float32], kind: GGMLQuantizationType) -> NDArray[Any]:
    """`tensor` in that type; of types that the package only reads, random blocks in its place."""
    try:
        blocks: NDArray[Any] = quantize(tensor, kind)
    except NotImplementedError:
        blocks = random_blocks(tensor.shape, kind)
    return blocks


def random_blocks(shape: Sequence[int], kind: GGMLQuantizationType) -> Blocks:
    """Blocks of a type with any codes, and weights of about 0.1."""
    weights, nbytes = GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(math.prod(shape))
    blocks = generator.integers(0, 256, (math.prod(shape) // weights, nbytes), dtype=np.uint8)
    if kind == GGMLQuantizationType.Q6_K:
        factors = generator.uniform(1e-5, 6e-5, (len(blocks), 1)).astype(np.float16)
        blocks[:, 208:] = factors.view(np.uint8)
    elif kind == GGMLQuantizationType.Q3_K:
        factors = generator.uniform(6e-4, 2e-3, (len(blocks), 1)).astype(np.float16)
        blocks[:, 108:] = factors.view(np.uint8)
    elif kind in (GGMLQuantizationType.IQ4_NL, GGMLQuantizationType.IQ4_XS):
        largest = 4e-3 if kind == GGMLQuantizationType.IQ4_NL else 1.5e-4
        blocks[:, :2] = (
            generator.uniform(largest / 3, largest, (len(blocks), 1)).astype(np.float16).view(np.uint8)
        )
    elif kind == GGMLQuantizationType.Q2_K:
        factors = generator.uniform(4e-3, 1e-2, (len(blocks), 2)).astype(np.float16)
        factors[:, 1] *= 1.5
        blocks[:, 80:] = factors.view(np.uint8)
    else:
        factors = generator.uniform(2e-4, 6e-4, (len(blocks), 2)).astype(np.float16)
        factors[:, 1] *= 8
        blocks[:, :4] = factors.view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def checkpoint_tensors(
    fields: Mapping[str, Any], held: Mapping[str, NDArray[np.float32]]
) -> dict[str, Tensor]:
    """The file's tensors by the names and in the order of the checkpoint that it was made of."""
    inverse = {name: original for original, name in _names(fields).items()}
    architecture = ARCHITECTURES[fields["architectures"][0]]
    found = _gpt_oss_experts(fields, held) if architecture == "gpt-oss" else {}
    for name, tensor in held.items():
        original = inverse.get(name)
        if original is not None:
            found[original] = torch.from_numpy(_turned(fields, name, tensor, back=True).copy())
        elif architecture == "gpt-oss" and "_exps." in name:
            continue
        elif name.endswith("_exps.weight"):
            layer, part = name.split(".")[1:3]
            for expert, weights in enumerate(tensor):
                found[_expert(fields, layer, part, expert)] = torch.from_numpy(weights.copy())
    return found


def _gpt_oss_experts(fields: Mapping[str, Any], held: Mapping[str, NDArray[np.float32]]) -> dict[str, Tensor]:
    """As the checkpoint has them: transposed, each gate followed by its partner."""
    found = {}
    for layer in range(fields["num_hidden_layers"]):
        own, theirs = f"blk.{layer}.ffn_", f"model.layers.{layer}.mlp.experts."
        for suffix, end in (("weight", ""), ("bias", "_bias")):
            gate, up = (torch.from_numpy(held[f"{own}{part}_exps.{suffix}"]) for part in ("gate", "up"))
            down = torch.from_numpy(held[f"{own}down_exps.{suffix}"].copy())
            both = torch.stack((gate, up), dim=2).flatten(1, 2)
            is_matrix = suffix == "weight"
            found[f"{theirs}gate_up_proj{end}"] = both.transpose(1, 2) if is_matrix else both
            found[f"{theirs}down_proj{end}"] = down.transpose(1, 2) if is_matrix else down
    return found


def _finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _stored(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def _metadata(fields: dict[str, Any]) -> dict[str, Any]:
    architecture = fields["architectures"][0]
    rope = fields["rope_parameters"]
    everywhere = rope.get("full_attention", rope)
    head_dim = fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
    metadata: dict[str, Any] = {
        "vocab_size": fields["vocab_size"],
        "block_count": fields["num_hidden_layers"],
        "context_length": fields["max_position_embeddings"],
        "embedding_length": fields["hidden_size"],
        "feed_forward_length": fields["intermediate_size"],
        "attention.head_count": fields["num_attention_heads"],
        "attention.head_count_kv": fields["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        **_epsilon(fields),
        "rope.freq_base": everywhere["rope_theta"],
        "rope.dimension_count": int(head_dim * everywhere.get("partial_rotary_factor", 1.0)),
    }
    metadata |= _scaling(fields, everywhere)
    if architecture.startswith("Gemma"):
        metadata["attention.sliding_window"] = fields["sliding_window"]
        metadata["final_logit_softcapping"] = fields["final_logit_softcapping"] or 0.0
    if architecture == "Gemma2ForCausalLM":
        metadata["attn_logit_softcapping"] = fields["attn_logit_softcapping"] or 0.0
    if architecture == "Gemma3ForCausalLM":
        metadata["rope.freq_base_swa"] = rope["sliding_attention"]["rope_theta"]
        metadata["attention.sliding_window_pattern"] = [
            kind == "sliding_attention" for kind in fields["layer_types"]
        ]
    if architecture == "Phi3ForCausalLM":
        metadata["attention.sliding_window"] = fields["sliding_window"] or 0
        metadata["rope.scaling.original_context_length"] = fields["original_max_position_embeddings"]
    metadata |= _of_its_own(architecture, fields, rope)
    experts = _num_experts(fields)
    if experts:
        metadata["expert_count"] = experts
        metadata["expert_used_count"] = fields["num_experts_per_tok"]
    if architecture == "GptOssForCausalLM":
        metadata["attention.sliding_window"] = fields["sliding_window"]
        metadata["expert_feed_forward_length"] = fields["intermediate_size"]
    if architecture in ("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "Glm4MoeForCausalLM"):
        metadata["expert_feed_forward_length"] = fields["moe_intermediate_size"]
    return metadata


def _epsilon(fields: Mapping[str, Any]) -> dict[str, float]:
    if "rms_norm_eps" in fields:
        return {"attention.layer_norm_rms_epsilon": fields["rms_norm_eps"]}
    return {"attention.layer_norm_epsilon": fields["layer_norm_eps"]}


def _num_experts(fields: Mapping[str, Any]) -> int:
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    return next((fields[name] for name in names if fields.get(name)), 0)


def _of_its_own(architecture: str, fields: dict[str, Any], rope: dict[str, Any]) -> dict[str, Any]:
    """What a file of this architecture says beside what those of all say."""
    metadata: dict[str, Any] = {}
    if architecture in ("Olmo3ForCausalLM", "Exaone4ForCausalLM") and fields["sliding_window"]:
        metadata["attention.sliding_window"] = fields["sliding_window"]
        windowed = [kind == "sliding_attention" for kind in fields["layer_types"]]
        metadata["attention.sliding_window_pattern"] = windowed
    if architecture == "Olmo3ForCausalLM" and "sliding_attention" in rope:
        metadata["rope.freq_base_swa"] = rope["sliding_attention"]["rope_theta"]
    if architecture == "Cohere2ForCausalLM":
        windowed = [kind == "sliding_attention" for kind in fields["layer_types"]]
        metadata["attention.sliding_window"] = fields["sliding_window"]
        metadata["attention.sliding_window_pattern"] = windowed
        metadata["logit_scale"] = fields["logit_scale"]
        metadata["rope.scaling.type"] = "none"
    if architecture == "Ministral3ForCausalLM":
        metadata["rope.scaling.yarn_log_multiplier"] = rope["mscale_all_dim"]
        metadata["attention.temperature_scale"] = rope["llama_4_scaling_beta"]
    if architecture == "Qwen2MoeForCausalLM":
        metadata["expert_shared_feed_forward_length"] = fields["shared_expert_intermediate_size"]
    if architecture == "Glm4MoeForCausalLM":
        metadata["expert_shared_count"] = fields["n_shared_experts"]
        metadata["leading_dense_block_count"] = fields["first_k_dense_replace"]
        metadata["expert_gating_func"] = 2
        metadata["expert_weights_scale"] = fields["routed_scaling_factor"]
        metadata["expert_weights_norm"] = fields["norm_topk_prob"]
        metadata["expert_group_count"] = fields["n_group"]
        metadata["expert_group_used_count"] = fields["topk_group"]
    if architecture == "GraniteForCausalLM":
        metadata["embedding_scale"] = fields["embedding_multiplier"]
        metadata["attention.scale"] = fields["attention_multiplier"]
        metadata["residual_scale"] = fields["residual_multiplier"]
        metadata["logit_scale"] = fields["logits_scaling"]
    return metadata


def _scaling(fields: Mapping[str, Any], rope: Mapping[str, Any]) -> dict[str, Any]:
    kind = rope.get("rope_type")
    if kind == "longrope":
        context = fields["original_max_position_embeddings"]
        growth = fields["max_position_embeddings"] / context
        return {
            "rope.scaling.original_context_length": context,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(growth) / math.log(context)),
        }
    if kind == "linear":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": rope["factor"]}
    if kind == "yarn":
        return {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        }
    return {}


def _file_tensors(fields: dict[str, Any], stored: Mapping[str, Tensor]) -> dict[str, NDArray[np.float32]]:
    tensors: dict[str, NDArray[np.float32]] = {}
    for original, name in _names(fields).items():
        if original in stored:
            tensors[name] = _turned(fields, name, stored[original].float().numpy(), back=False)
    if fields["architectures"][0] == "GptOssForCausalLM":
        return tensors | _split_experts(fields, stored)
    experts = _num_experts(fields)
    for layer in range(fields["num_hidden_layers"]) if experts else ():
        if _expert(fields, str(layer), "ffn_down_exps", 0) not in stored:
            continue  # a dense one
        for part in dict.fromkeys(EXPERT_NAMES.values()):
            each = [stored[_expert(fields, str(layer), part, expert)].numpy() for expert in range(experts)]
            tensors[f"blk.{layer}.{part}.weight"] = np.stack(each)
    return tensors | _divisors(fields)


def _split_experts(fields: Mapping[str, Any], stored: Mapping[str, Tensor]) -> dict[str, NDArray[np.float32]]:
    """gpt-oss' gates and their partners, which lie in turn, in tensors of their own."""
    tensors = {}
    for layer in range(fields["num_hidden_layers"]):
        theirs, own = f"model.layers.{layer}.mlp.experts.", f"blk.{layer}.ffn_"
        for suffix, end in (("weight", ""), ("bias", "_bias")):
            both, down = stored[f"{theirs}gate_up_proj{end}"], stored[f"{theirs}down_proj{end}"]
            if suffix == "weight":
                both, down = both.transpose(1, 2), down.transpose(1, 2)
            parts = {"gate": both[:, ::2], "up": both[:, 1::2], "down": down}
            for part, tensor in parts.items():
                tensors[f"{own}{part}_exps.{suffix}"] = tensor.contiguous().numpy()
    return tensors


def _divisors(fields: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """What is worked out of a scaling when a checkpoint is converted."""
    rope = fields["rope_parameters"]
    if rope.get("rope_type") == "longrope":
        return {
            "rope_factors_long.weight": np.array(rope["long_factor"], np.float32),
            "rope_factors_short.weight": np.array(rope["short_factor"], np.float32),
        }
    if rope.get("rope_type") != "llama3":
        return {}
    head_dim = fields["head_dim"]
    low, high, context = (
        rope[name] for name in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    divisors = []
    for frequency in rope["rope_theta"] ** -(np.arange(0, head_dim, 2) / head_dim):
        wavelength = 2 * math.pi / frequency
        smooth = (context / wavelength - low) / (high - low)
        between = 1 / ((1 - smooth) / rope["factor"] + smooth)
        divisor = rope["factor"] if wavelength > context / low else between
        divisors.append(1.0 if wavelength < context / high else divisor)
    return {"rope_freqs.weight": np.array(divisors, np.float32)}


def _names(fields: Mapping[str, Any]) -> dict[str, str]:
    """Of the checkpoint → in the file; experts apart."""
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if fields["tie_word_embeddings"]:
        del names["lm_head.weight"]
    architecture = fields["architectures"][0]
    others = {
        "Phi3ForCausalLM": ("mlp.up_proj",),
        "Glm4ForCausalLM": ("mlp.up_proj", "block_sparse_moe.gate"),
        "MixtralForCausalLM": ("mlp.gate", "mlp.gate_up_proj"),
        "GptOssForCausalLM": ("mlp.gate", "mlp.gate_up_proj", "block_sparse_moe.gate"),
    }
    parts = LAYER_NAMES | (GEMMA_NAMES if architecture.startswith("Gemma") else {})
    parts |= POST_NORM_NAMES if ARCHITECTURES[architecture] in ("olmo2", "exaone4") else {}
    parts |= GPT_OSS_NAMES if architecture == "GptOssForCausalLM" else {}
    parts |= OWN_NAMES.get(architecture, {})
    for absent in others.get(architecture, ("mlp.gate_up_proj", "block_sparse_moe.gate")):
        del parts[absent]
    for layer in range(fields["num_hidden_layers"]):
        for original, name in parts.items():
            for suffix in ("weight", "bias"):
                names[f"model.layers.{layer}.{original}.{suffix}"] = f"blk.{layer}.{name}.{suffix}"
        names[f"model.layers.{layer}.self_attn.sinks"] = f"blk.{layer}.attn_sinks.weight"
        names[f"model.layers.{layer}.mlp.gate.e_score_correction_bias"] = f"blk.{layer}.exp_probs_b.bias"
    return names


def _expert(fields: Mapping[str, Any], layer: str, part: str, expert: int) -> str:
    mixtral = fields["architectures"][0] == "MixtralForCausalLM"
    ours = next(n for n, p in EXPERT_NAMES.items() if p == part and (n[0] == "w") == mixtral)
    return f"model.layers.{layer}.{'block_sparse_moe' if mixtral else 'mlp'}.experts.{expert}.{ours}.weight"


def _turned(
    fields: Mapping[str, Any], name: str, tensor: NDArray[np.float32], *, back: bool
) -> NDArray[np.float32]:
    """What conversion does to numbers: rotated pairs side by side in some, 1 added to Gemma's norms."""
    architecture = fields["architectures"][0]
    if architecture.startswith("Gemma") and name.endswith("norm.weight"):
        return tensor - 1 if back else tensor + 1
    part = name.split(".")[-2]
    if ARCHITECTURES[architecture] not in INTERLEAVED or part not in ("attn_q", "attn_k"):
        return tensor
    heads = fields["num_attention_heads" if part == "attn_q" else "num_key_value_heads"]
    halves = (heads, -1, 2) if back else (heads, 2, tensor.shape[0] // heads // 2)
    return tensor.reshape(*halves, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def _put(state: Mapping[str, Tensor], name: str, tensor: Tensor) -> None:
    """transformers holds all experts of a layer in two tensors, gate above up."""
    name = name.replace("block_sparse_moe", "mlp")
    if name in state:
        state[name].copy_(tensor)
        return
    mlp, _, rest = name.partition(".experts.")
    expert, part = rest.split(".")[:2]
    if part in ("down_proj", "w2"):
        state[f"{mlp}.experts.down_proj"][int(expert)].copy_(tensor)
    else:
        half = state[f"{mlp}.experts.gate_up_proj"][int(expert)]
        first = 0 if part in ("gate_proj", "w1") else len(tensor)
        half[first : first + len(tensor)].copy_(tensor)
