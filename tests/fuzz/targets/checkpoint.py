"""Folders in the Hugging Face layout: one of their files is changed; read as a worker reads them."""

from __future__ import annotations

import json
import random
import struct
from functools import cache
from pathlib import Path
from typing import Any

import torch

from shared.engine.loading.config import load_model_config
from shared.engine.loading.weight_files import check_weight_files
from shared.engine.loading.weights import load_weights
from tests.fuzz.mutation import EDGES, mutated_bytes, mutated_json
from tests.fuzz.target import Target, in_folder, put_named_file

HIDDEN, INNER, HEADS, VOCAB = 16, 32, 2, 24
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "rms_norm_eps": 1e-05,
    "head_dim": HIDDEN // HEADS,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
}
GENERATION: dict[str, Any] = {"eos_token_id": [2], "temperature": 0.6, "top_p": 0.9, "top_k": 4}
QUANTIZATION: tuple[dict[str, Any], ...] = (
    {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 16,
        "desc_act": False,
        "sym": True,
        "modules_to_not_convert": ["a"],
    },
    {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"},
    {"quant_method": "fp8", "weight_block_size": [16, 16], "activation_scheme": "dynamic"},
    {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head", "re:.*a"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "strategy": "group",
                    "group_size": 16,
                    "symmetric": True,
                },
            }
        },
    },
)
ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Phi3ForCausalLM",
    "GptOssForCausalLM",
    "DeepseekV3ForCausalLM",
    "Glm4MoeForCausalLM",
    "Cohere2ForCausalLM",
    "Exaone4ForCausalLM",
)
NAMES = ("config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json")


def safetensors_bytes(header: bytes, data: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


@cache
def tensor_header() -> tuple[dict[str, Any], int]:
    """Return the header of a file that fits CONFIG, and how many bytes lie behind it."""
    layer = "model.layers.0"
    shapes = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        f"{layer}.input_layernorm.weight": (HIDDEN,),
        f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
        **{f"{layer}.self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"},
        **{f"{layer}.mlp.{name}_proj.weight": (INNER, HIDDEN) for name in ("gate", "up")},
        f"{layer}.mlp.down_proj.weight": (HIDDEN, INNER),
    }
    return placed(shapes)


def placed(shapes: dict[str, tuple[int, ...]]) -> tuple[dict[str, Any], int]:
    """Return a header of float32 tensors of these shapes, one after the other, and their bytes."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * (shape[0] * (shape[1] if len(shape) > 1 else 1))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    return header, end


def mutated_safetensors(header: dict[str, Any], size: int, rng: random.Random) -> bytes:
    """Return the file with its header's values, its header's length or any bytes changed."""
    body = bytes(size)
    data = safetensors_bytes(mutated_json(header, rng), body)
    if rng.random() < 0.3:
        data = mutated_bytes(safetensors_bytes(json.dumps(header).encode(), body), rng)
    if rng.random() < 0.1:
        data = struct.pack("<Q", rng.choice(EDGES)) + data[8:]
    return data


def make(rng: random.Random) -> bytes:
    """The name of a file, a line end, and what it holds."""
    name = rng.choice((*NAMES, NAMES[0]))
    match name:
        case "config.json":
            config = {**CONFIG, "architectures": [rng.choice(ARCHITECTURES)]}
            if rng.random() < 0.4:
                config["quantization_config"] = rng.choice(QUANTIZATION)
            data = mutated_json(config, rng)
        case "generation_config.json":
            data = mutated_json(GENERATION, rng)
        case "model.safetensors":
            data = mutated_safetensors(*tensor_header(), rng)
        case _:
            names = dict.fromkeys(tensor_header()[0], "model.safetensors")
            data = mutated_json({"metadata": {"total_size": 1}, "weight_map": names}, rng)
    return name.encode() + b"\n" + data


def prepare(folder: Path) -> None:
    header, size = tensor_header()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(json.dumps(header).encode(), bytes(size)))


def run(folder: Path, data: bytes) -> None:
    name = put_named_file(folder, data, NAMES, prepare)
    if not name:
        return
    if name.endswith("index.json"):
        (folder / "model.safetensors").unlink()
    check_weight_files(folder)
    config = load_model_config(folder)
    load_weights(folder, config, torch.device("cpu"))


TARGET = Target("checkpoint", make, in_folder(run), tries=150)
