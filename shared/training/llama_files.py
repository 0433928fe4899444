"""A Llama in training to and from files: a Hugging Face directory; also from a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import load_file

from shared.engine import LLM, load_model_config
from shared.engine.loading.gguf.checkpoint import GgufCheckpoint
from shared.engine.loading.gguf.find_file import find_gguf
from shared.errors import InvalidRequest, NotFound
from shared.files.atomic_write import write_file
from shared.training.llama import Llama, LlamaShape
from shared.training.tensor_file import write_tensors

WEIGHTS_FILE = "model.safetensors"
CHAT_FILES = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def write_model(model: Llama, folder: Path, bos_token_id: int | None, eos_token_ids: Sequence[int]) -> None:
    """config.json, generation_config.json and model.safetensors in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    special = {"bos_token_id": bos_token_id, "eos_token_id": list(eos_token_ids)}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **asdict(model.shape),
        "head_dim": model.shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **special,
    }
    for name, fields in (("config.json", config), ("generation_config.json", special)):
        write_file(folder / name, (json.dumps(fields, indent=2) + "\n").encode())
    tensors = {
        name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in model.named_parameters()
    }
    write_tensors(folder / WEIGHTS_FILE, tensors, {"format": "pt"})


def load_model(path: Path) -> Llama:
    """A Llama with tied embeddings in fp32, from a folder in the Hugging Face layout or a GGUF file.

    Raises InvalidRequest for another architecture.
    """
    config = load_model_config(path)
    rope = config.layers[0].rope
    if config.architecture != "LlamaForCausalLM" or not config.tie_word_embeddings or rope is None:
        raise InvalidRequest(
            f"{path} is a {config.architecture}; what is trained here is a LlamaForCausalLM "
            "whose embedding is its head"
        )
    model = Llama(
        LlamaShape(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=config.max_position_embeddings,
            rope_theta=rope.theta,
            rms_norm_eps=config.rms_norm_eps,
        )
    )
    gguf = find_gguf(path)
    if gguf is None:
        weights = load_file(path / WEIGHTS_FILE)
    else:
        checkpoint = GgufCheckpoint(gguf, config, torch.float32)
        with checkpoint.reading() as tensors:
            weights = {name: tensors.read(name) for name in checkpoint.tensors}
    model.load_state_dict({name: value.float() for name, value in weights.items()})
    return model


def copy_tokenizer(model: Path, llm: LLM, folder: Path) -> None:
    """The target's, so that ids mean the same. Raises NotFound for a target without one."""
    if llm.tokenizer is None:
        raise NotFound(f"{model} has no tokenizer.json; a draft needs the tokenizer of its target")
    write_file(folder / "tokenizer.json", llm.tokenizer.to_str().encode())
    for name in CHAT_FILES:
        if (model / name).is_file():
            write_file(folder / name, (model / name).read_bytes())
