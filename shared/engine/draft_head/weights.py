"""Read the tensors of a draft head: names, shapes, dtypes, ids and numbers are checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from shared.engine.draft_head.config import WEIGHTS_FILE, DraftHeadConfig, load_draft_head_config
from shared.engine.loading.checkpoint_digest import checkpoint_digest
from shared.engine.loading.linear import DenseLinear, Linear
from shared.engine.loading.model_config import ModelConfig
from shared.engine.loading.quantize import quantize
from shared.errors import InvalidRequest, NotFound

INT8_GROUPS = (288, 256, 192, 128, 96, 64, 32)
"""Columns that share a scale: the largest of these that divides the width, for every group has its price."""


@dataclass(frozen=True, slots=True)
class HeadBlockWeights:
    """`gate_up`: gates first."""

    norm: Tensor  # float32 [d]
    gate_up: Linear  # [2 * m, d]
    down: Linear  # [d, m]


@dataclass(frozen=True, slots=True)
class DraftHeadWeights:
    """All vectors are float32. `mix`: of the state and, behind it, of the last token's embedding."""

    config: DraftHeadConfig
    taps_norm: Tensor  # [taps * target's hidden]
    fuse: Linear  # [d, taps * target's hidden]
    state_norm: Tensor  # [d]
    embed_norm: Tensor  # [target's hidden]
    mix: Linear  # [d, d + target's hidden]
    blocks: tuple[HeadBlockWeights, ...]
    out_norm: Tensor  # [d]
    head: Linear  # [draft vocabulary, d]
    ids: Tensor  # int32 [draft vocabulary], ascending
    confidence: Tensor  # [d]
    confidence_bias: float

    def quantized(self) -> DraftHeadWeights:
        """Return the head with codes of 8 bits: a guess needs no more, and they are read in half the time."""
        return replace(
            self,
            fuse=_quantized(self.fuse, "fuse"),
            mix=_quantized(self.mix, "mix"),
            blocks=tuple(
                replace(
                    block, gate_up=_quantized(block.gate_up, "gate_up"), down=_quantized(block.down, "down")
                )
                for block in self.blocks
            ),
            head=_quantized(self.head, "head"),
        )


def load_draft_head(directory: str | Path, target: ModelConfig, target_dir: str | Path) -> DraftHeadWeights:
    """Read the head in `directory` for the model `target`, whose checkpoint is at `target_dir`.

    Raises NotFound for missing files, InvalidRequest for what is damaged or not a head of this target; the
    sentence names the field or the tensor.
    """
    folder = Path(directory)
    config = load_draft_head_config(folder, target)
    if config.target_digest and config.target_digest != (digest := checkpoint_digest(target_dir)):
        raise InvalidRequest(
            f"the draft head is for the checkpoint {config.target_digest}, this model is {digest}; "
            "train a head for this model"
        )
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise NotFound(f"{str(folder)!r} has no {WEIGHTS_FILE}; give the directory of a draft head")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            _check_tensors(file, config)
            return _read(file, config)
    except (SafetensorError, OSError) as error:
        raise InvalidRequest(f"{WEIGHTS_FILE} of the draft head is damaged ({error})") from error


def _check_tensors(file: Any, config: DraftHeadConfig) -> None:
    """Compare the header of the file with what the config says, before a tensor is read."""
    shapes, names = config.shapes(), set(file.keys())
    for name in sorted(shapes.keys() - names):
        raise InvalidRequest(f"the draft head has no tensor {name}")
    for name in sorted(names - shapes.keys()):
        raise InvalidRequest(f"the draft head has a tensor {name[:80]!r}, which no draft head has")
    for name, shape in shapes.items():
        found = file.get_slice(name)
        if tuple(found.get_shape()) != shape:
            raise InvalidRequest(
                f"tensor {name} of the draft head is {found.get_shape()}, its config wants {list(shape)}"
            )
        allowed = ("I32",) if name == "ids" else ("F32", "BF16")
        if found.get_dtype() not in allowed:
            raise InvalidRequest(
                f"tensor {name} of the draft head is {found.get_dtype()}; it must be {' or '.join(allowed)}"
            )


def _read(file: Any, config: DraftHeadConfig) -> DraftHeadWeights:
    def tensor(name: str) -> Tensor:
        # A tensor from safetensors may sit at any byte offset of the file map; a copy is aligned and ours.
        found: Tensor = file.get_tensor(name).to(torch.float32, copy=True)
        if not torch.isfinite(found).all():
            raise InvalidRequest(f"tensor {name} of the draft head holds what is not a finite number")
        return found

    def linear(name: str) -> DenseLinear:
        return DenseLinear(tensor(f"{name}.weight"))

    ids: Tensor = file.get_tensor("ids").to(torch.int32, copy=True)
    if ids[0] < 0 or ids[-1] >= config.target_vocab_size or not (ids[1:] > ids[:-1]).all():
        raise InvalidRequest(
            f"ids of the draft head must ascend from 0 to below {config.target_vocab_size} without repeats"
        )
    return DraftHeadWeights(
        config,
        tensor("taps_norm.weight"),
        linear("fuse"),
        tensor("state_norm.weight"),
        tensor("embed_norm.weight"),
        DenseLinear(torch.cat([tensor("mix_state.weight"), tensor("mix_embed.weight")], dim=1)),
        tuple(
            HeadBlockWeights(
                tensor(f"blocks.{block}.norm.weight"),
                linear(f"blocks.{block}.gate_up"),
                linear(f"blocks.{block}.down"),
            )
            for block in range(config.num_blocks)
        ),
        tensor("out_norm.weight"),
        linear("head"),
        ids,
        tensor("confidence.weight"),
        float(tensor("confidence.bias")),
    )


def _quantized(linear: Linear, name: str) -> Linear:
    if not isinstance(linear, DenseLinear):
        return linear
    width = linear.shape[1]
    group = next((each for each in INT8_GROUPS if width % each == 0), INT8_GROUPS[-1])
    return quantize(linear, 8, group, f"{name} of the draft head")
