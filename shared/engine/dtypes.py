"""The dtypes that models compute in: a config names them, everything else computes with torch's."""

from __future__ import annotations

import torch

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
