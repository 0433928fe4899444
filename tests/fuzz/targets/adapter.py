"""Adapters as PEFT saves them: configuration or tensors are changed; read over a model of two layers."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

from shared.engine.loading.adapter import load_adapter_weights
from shared.engine.loading.config import load_model_config
from shared.engine.loading.model_config import ModelConfig
from tests.fuzz.mutation import mutated_json
from tests.fuzz.target import Target, in_folder
from tests.fuzz.targets.checkpoint import (
    CONFIG,
    HIDDEN,
    INNER,
    mutated_safetensors,
    placed,
    safetensors_bytes,
)

RANK = 2
STATED: dict[str, Any] = {
    "peft_type": "LORA",
    "r": RANK,
    "lora_alpha": 4,
    "use_rslora": False,
    "rank_pattern": {"q_proj": RANK},
    "alpha_pattern": {"^model\\.layers\\.0\\.mlp\\.up_proj$": 8},
    "target_modules": ["q_proj", "up_proj"],
    "base_model_name_or_path": "a",
    "init_lora_weights": True,
    "bias": "none",
    "lora_dropout": 0.0,
    "modules_to_save": None,
}
NAMES = ("adapter_config.json", "adapter_model.safetensors")


@cache
def header() -> tuple[dict[str, Any], int]:
    layer = "base_model.model.model.layers.0"
    return placed(
        {
            f"{layer}.self_attn.q_proj.lora_A.weight": (RANK, HIDDEN),
            f"{layer}.self_attn.q_proj.lora_B.weight": (HIDDEN, RANK),
            f"{layer}.mlp.up_proj.lora_A.weight": (RANK, HIDDEN),
            f"{layer}.mlp.up_proj.lora_B.weight": (INNER, RANK),
        }
    )


def make(rng: random.Random) -> bytes:
    """The name of a file, a line end, and what it holds."""
    name = rng.choice(NAMES)
    data = mutated_json(STATED, rng) if name == NAMES[0] else mutated_safetensors(*header(), rng)
    return name.encode() + b"\n" + data


@cache
def base(folder: Path) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return load_model_config(folder)


def run(folder: Path, data: bytes) -> None:
    said, _, content = data.partition(b"\n")
    name = said.decode(errors="replace")
    if name not in NAMES:
        return
    config = base(folder)
    told, size = header()
    (folder / NAMES[0]).write_text(json.dumps(STATED))
    (folder / NAMES[1]).write_bytes(safetensors_bytes(json.dumps(told).encode(), bytes(size)))
    (folder / name).write_bytes(content)
    load_adapter_weights(folder, config, max_rank=64)


TARGET = Target("adapter", make, in_folder(run))
