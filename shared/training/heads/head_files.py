"""Write the directory of a draft head, which engines read: config.json and model.safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from shared.engine.draft_head.config import (
    CONFIG_FILE,
    MODEL_TYPE,
    WEIGHTS_FILE,
    DraftHeadConfig,
    load_draft_head_config,
)
from shared.engine.loading.model_config import ModelConfig
from shared.errors import InvalidRequest
from shared.files.atomic_write import write_file
from shared.training.heads.draft_head import DraftHead
from shared.training.heads.head_shape import HeadShape
from shared.training.tensor_file import write_tensors


def write_head(head: DraftHead, folder: Path, target_digest: str) -> None:
    """Write the head in bfloat16; a run that is killed meanwhile leaves each of both files whole.

    `target_digest` is of the checkpoint that it drafts for.
    """
    shape = head.shape
    config = {
        "model_type": MODEL_TYPE,
        "target": {
            "digest": target_digest,
            "vocab_size": shape.vocab_size,
            "hidden_size": shape.target_size,
        },
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_blocks": shape.num_blocks,
        "tap_layers": list(shape.tap_layers),
        "draft_vocab_size": shape.draft_vocab_size,
        "rms_norm_eps": shape.rms_norm_eps,
    }
    tensors = {name: value.detach().bfloat16().contiguous() for name, value in head.named_parameters()}
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / WEIGHTS_FILE, {**tensors, "ids": head.ids.contiguous()}, {"format": "pt"})
    write_file(folder / CONFIG_FILE, (json.dumps(config, indent=2) + "\n").encode())


def check_head(folder: Path, shape: HeadShape, target: ModelConfig, target_digest: str) -> None:
    """Raises NotFound where `folder` has no draft head, InvalidRequest where it is of another target or
    size."""
    wanted = DraftHeadConfig(
        target_digest,
        shape.vocab_size,
        shape.target_size,
        shape.hidden_size,
        shape.intermediate_size,
        shape.num_blocks,
        shape.tap_layers,
        shape.draft_vocab_size,
        shape.rms_norm_eps,
    )
    if load_draft_head_config(folder, target) != wanted:
        raise InvalidRequest(
            f"{folder} is no draft head of this target and size; name one that is, or begin without"
        )


@torch.no_grad()
def take_parameters(head: DraftHead, folder: Path) -> None:
    """Give `head` the parameters of the draft head in `folder`, which `check_head` knows.

    Raises InvalidRequest for a file that is not whole.
    """
    path = folder / WEIGHTS_FILE
    try:
        with safe_open(path, framework="pt") as file:
            for name, parameter in head.named_parameters():
                parameter.copy_(file.get_tensor(name))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise InvalidRequest(f"{path} is damaged ({error}); name another draft head") from error


@torch.no_grad()
def round_as_written(head: DraftHead) -> None:
    """Make the parameters those that an engine reads."""
    for parameter in head.parameters():
        parameter.copy_(parameter.bfloat16())


def read_known_ids(folder: Path) -> Tensor | None:
    """Return the tokens that the head in `folder` knows, None where there is no head yet.

    Raises InvalidRequest for a file that is not whole.
    """
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            ids: Tensor = file.get_tensor("ids")
            return ids
    except SafetensorError as error:
        raise InvalidRequest(f"{path} is damaged ({error}); remove it, or give another --out") from error
