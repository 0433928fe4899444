"""Draft heads with random weights, in memory and as directories."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from shared.engine.draft_head.config import MODEL_TYPE, DraftHeadConfig
from tests.support.engine import save_random_model

SMALL = DraftHeadConfig("", 97, 48, 40, 56, 2, (0, 1, 2), 61, 1e-5)
"""A head for the models that tests save, no size of which is a multiple of a vector."""
WIDE = DraftHeadConfig("", 9000, 576, 576, 1536, 1, (0, 1, 2), 8192, 1e-5)
"""A head as wide as one of SmolLM2's."""


def random_tensors(config: DraftHeadConfig, seed: int = 0) -> dict[str, Tensor]:
    """Return weights with which logits differ clearly and confidences lie on both sides of a half."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, shape in config.shapes().items():
        if name == "ids":
            chosen = torch.randperm(config.target_vocab_size, generator=generator)[: shape[0]]
            tensors[name] = chosen.sort().values.to(torch.int32)
        else:
            size = 1.0 if len(shape) == 1 else 3 * shape[1] ** -0.5
            middle = 1.0 if "norm" in name else 0.0
            spread = 0.1 if "confidence" in name else 0.2 if len(shape) == 1 else size
            tensors[name] = middle + spread * torch.randn(shape, generator=generator)
    return tensors


def fields_of(config: DraftHeadConfig) -> dict[str, Any]:
    return {
        "model_type": MODEL_TYPE,
        "target": {
            "digest": config.target_digest,
            "vocab_size": config.target_vocab_size,
            "hidden_size": config.target_hidden_size,
        },
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_blocks": config.num_blocks,
        "tap_layers": list(config.tap_layers),
        "draft_vocab_size": config.draft_vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
    }


def save_head(
    folder: Path,
    config: DraftHeadConfig = SMALL,
    tensors: dict[str, Tensor] | None = None,
    **fields: Any,
) -> Path:
    """Save a head in `folder`; `fields` go over those of its config."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors or random_tensors(config), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(fields_of(config) | fields))
    return folder


def save_agreeing_pair(folder: Path) -> tuple[Path, Path]:
    """Save a target whose layers add nothing, so that a token follows from the one before it, and a head that
    draws the same: both have the logits of the last token's embedding."""
    target = save_random_model(folder / "target", max_position_embeddings=256)
    path = target / "model.safetensors"
    tensors = load_file(path)
    silent = ("o_proj.weight", "down_proj.weight")
    tensors = {name: each * (not name.endswith(silent)) for name, each in tensors.items()}
    save_file(tensors, path, metadata={"format": "pt"})
    size = SMALL.target_hidden_size
    config = replace(SMALL, hidden_size=size, draft_vocab_size=SMALL.target_vocab_size)
    head = {
        name: torch.ones(shape) if "norm" in name else torch.zeros(shape)
        for name, shape in config.shapes().items()
    }
    head |= {
        "mix_embed.weight": torch.eye(size),
        "out_norm.weight": tensors["model.norm.weight"].clone(),
        "head.weight": tensors["lm_head.weight"].clone(),
        "ids": torch.arange(config.draft_vocab_size, dtype=torch.int32),
        "confidence.bias": torch.full((1,), 3.0),
    }
    return target, save_head(folder / "head", config, head)
