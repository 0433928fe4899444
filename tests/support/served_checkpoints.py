"""Checkpoints of served shapes with weights that are the same everywhere: they rest on no random generator's
version, so that what a kernel makes of them can be kept as a hash."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from shared.engine import load_model_config
from shared.engine.loading.tensor_plan import TensorPlan

SPREAD = 16
"""Norm weights and biases lie within a few of these hundredths of their mean."""


def save_served(folder: Path, config: dict[str, Any], *, stored: frozenset[str] = frozenset()) -> Path:
    """A bfloat16 checkpoint of `config`; `stored` are names that its export has beside the usual ones."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    model = load_model_config(folder)
    expected = TensorPlan(model, stored).expected()
    tensors = {name: steady_tensor(name, spec.shape, model.norm_offset) for name, spec in expected.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def steady_tensor(name: str, shape: tuple[int, ...], norm_offset: float = 0.0) -> Tensor:
    """bfloat16 numbers of the name alone, each of them exact in that dtype.

    Matrices are uniform with a variance near 1 / inputs, so that activations keep their size; norm weights
    lie around one once `norm_offset` is added, biases around zero.
    """
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    generator = np.random.Philox(key=int.from_bytes(digest, "little"))
    count = int(np.prod(shape))
    words = generator.random_raw(-(-count // 8))
    values = torch.from_numpy(words.view(np.int8)[:count].copy()).to(torch.bfloat16)
    if len(shape) == 1:
        centre = 0.0 if name.endswith("bias") else 1.0 - norm_offset
        return centre + torch.round(values.float() / SPREAD).to(torch.bfloat16) / 128
    # A power of two: int8 / 128 has a variance of 1/3, so this is within a factor of two of 1 / inputs.
    bits = round(math.log2(shape[-1]) / 2)
    scale: float = 2.0 ** -(7 + bits)
    return values.reshape(shape) * scale
