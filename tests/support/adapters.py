"""LoRA adapters with random weights: as PEFT saves them, and written by hand."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from shared.engine import ModelConfig

ALL_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
WEIGHT_STD = 0.2


def peft_adapter(base: PreTrainedModel, folder: Path, *, seed: int = 0, **fields: Any) -> PreTrainedModel:
    """What PEFT makes of `base` with an adapter of LoraConfig's `fields`, which it saves in `folder`."""
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415  # seconds, for few tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PEFT and transformers about each other
        model: Any = get_peft_model(base, LoraConfig(**fields))
        torch.manual_seed(seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.normal_(0.0, WEIGHT_STD)
        model.save_pretrained(str(folder))
    adapted: PreTrainedModel = model.eval()
    return adapted


def adapter_tensors(
    config: ModelConfig, *, seed: int = 0, rank: int = 4, modules: tuple[str, ...] = ALL_MODULES
) -> dict[str, Tensor]:
    """lora_A and lora_B of `modules` of all layers of a model with the names of Llama."""
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = {
        "q_proj": (query, hidden),
        "k_proj": (key, hidden),
        "v_proj": (key, hidden),
        "o_proj": (hidden, query),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for layer in range(config.num_layers):
        for module in modules:
            part = "mlp" if module in ALL_MODULES[4:] else "self_attn"
            prefix = f"base_model.model.model.layers.{layer}.{part}.{module}"
            num_out, num_in = shapes[module]
            for name, shape in (("lora_A", (rank, num_in)), ("lora_B", (num_out, rank))):
                tensors[f"{prefix}.{name}.weight"] = (
                    torch.empty(shape).normal_(0.0, WEIGHT_STD, generator=generator).contiguous()
                )
    return tensors


def write_adapter(folder: Path, tensors: dict[str, Tensor], *, rank: int = 4, **fields: Any) -> Path:
    """The directory of an adapter; `fields` go over a plain adapter_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    stated = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": "all-linear",
        **fields,
    }
    (folder / "adapter_config.json").write_text(json.dumps(stated))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def save_adapter(
    folder: Path,
    config: ModelConfig,
    *,
    seed: int = 0,
    rank: int = 4,
    modules: tuple[str, ...] = ALL_MODULES,
    **fields: Any,
) -> Path:
    """A plain adapter of a model with the names of Llama."""
    return write_adapter(
        folder, adapter_tensors(config, seed=seed, rank=rank, modules=modules), rank=rank, **fields
    )
