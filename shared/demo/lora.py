"""Low-rank adapters on the linear layers of a Llama (LoRA, arXiv:2106.09685), to PEFT's layout and back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from shared.files.atomic_write import write_file
from shared.training.llama import Llama
from shared.training.tensor_file import write_tensors

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PEFT_PREFIX = "base_model.model."
WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"


class LoraLinear(nn.Module):
    """x W^T + scale (x A^T) B^T. W is frozen in bf16, A [rank, in] is drawn, B [out, rank] starts at 0."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.register_buffer("weight", base.weight.detach().bfloat16(), persistent=False)
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        self.scale = alpha / rank
        self.enabled = True

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        weight = self.get_buffer("weight")
        out = functional.linear(x.to(weight.dtype), weight)
        if not self.enabled:
            return out
        low = functional.linear(x, self.lora_a.to(x.dtype))  # [..., rank]
        return out + functional.linear(low, (self.scale * self.lora_b).to(x.dtype))


def add_adapter(model: Llama, rank: int, alpha: float) -> None:
    """Freeze `model` and put an adapter, which changes nothing yet, on every linear layer."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for owner in list(model.modules()):
        for name in PROJECTIONS:
            base = getattr(owner, name, None)
            if isinstance(base, nn.Linear):
                setattr(owner, name, LoraLinear(base, rank, alpha))
    model.model.embed_tokens.bfloat16()


@contextmanager
def without_adapter(model: Llama) -> Iterator[None]:
    """Inside, `model` computes as it did before `add_adapter`."""
    layers = [module for module in model.modules() if isinstance(module, LoraLinear)]
    for layer in layers:
        layer.enabled = False
    try:
        yield
    finally:
        for layer in layers:
            layer.enabled = True


def import_adapter(model: Llama, folder: Path, share: float = 1.0) -> None:
    """Move the adapter on `model` so far towards an exported one: with 1 it is that, with 0.5 their mean.

    Raises ValueError where that has another shape or other layers.
    """
    tensors = load_file(folder / WEIGHTS_FILE)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}
    halves = {
        f"{PEFT_PREFIX}{name}.lora_{half}.weight": parameter
        for name, layer in layers.items()
        for half, parameter in (("A", layer.lora_a), ("B", layer.lora_b))
    }
    if {name: value.shape for name, value in tensors.items()} != {
        name: parameter.shape for name, parameter in halves.items()
    }:
        raise ValueError(f"the adapter in {folder} has other layers or another rank: start from one like it")
    with torch.no_grad():
        for name, parameter in halves.items():
            parameter.lerp_(tensors[name].float(), share)


def export_adapter(model: Llama, folder: Path, base_name: str) -> None:
    """Write the adapter in bf16 as PEFT reads it; `base_name` is what it says that it belongs to."""
    folder.mkdir(parents=True, exist_ok=True)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}
    tensors = {}
    for name, layer in layers.items():
        tensors[f"{PEFT_PREFIX}{name}.lora_A.weight"] = layer.lora_a.detach().bfloat16().contiguous()
        tensors[f"{PEFT_PREFIX}{name}.lora_B.weight"] = layer.lora_b.detach().bfloat16().contiguous()
    rank = next(iter(layers.values())).lora_a.shape[0]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": rank,
        "lora_alpha": round(next(iter(layers.values())).scale * rank),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "use_dora": False,
        "use_rslora": False,
        "modules_to_save": None,
        "target_modules": list(PROJECTIONS),
    }
    write_tensors(folder / WEIGHTS_FILE, tensors, {"format": "pt"})
    write_file(folder / CONFIG_FILE, (json.dumps(config, indent=2) + "\n").encode())
