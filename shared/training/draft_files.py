"""A draft as a Hugging Face directory: what `penstock up --draft DIR` takes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch

from shared.demo.llama import Llama
from shared.engine import LLM
from shared.engine.loading.config import ModelConfig
from shared.errors import NotFound
from shared.training.whole_files import write_tensors, write_whole

CHAT_FILES = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def write_draft(draft: Llama, target: ModelConfig, folder: Path) -> None:
    """config.json, generation_config.json and model.safetensors in bfloat16."""
    special = {"bos_token_id": target.bos_token_id, "eos_token_id": list(target.eos_token_ids)}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **asdict(draft.shape),
        "head_dim": draft.shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **special,
    }
    for name, fields in (("config.json", config), ("generation_config.json", special)):
        write_whole(folder / name, (json.dumps(fields, indent=2) + "\n").encode())
    tensors = {
        name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in draft.named_parameters()
    }
    write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})


def copy_tokenizer(model: Path, llm: LLM, folder: Path) -> None:
    """The target's, so that ids mean the same. Raises NotFound for a target without one."""
    if llm.tokenizer is None:
        raise NotFound(f"{model} has no tokenizer.json; a draft needs the tokenizer of its target")
    write_whole(folder / "tokenizer.json", llm.tokenizer.to_str().encode())
    for name in CHAT_FILES:
        if (model / name).is_file():
            write_whole(folder / name, (model / name).read_bytes())
