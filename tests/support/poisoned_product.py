"""A packed matrix times rows into memory that held no numbers before: a row that is not written shows."""

from __future__ import annotations

import torch
from torch import Tensor

from shared.engine.native.linear import PANEL, NativeLinear


def poisoned_product(linear: NativeLinear, rows: Tensor, threads: int = 1) -> Tensor:
    """float32 [T, in] -> float32 [T, out], columns in the order of the panels."""
    rows = rows.float().contiguous()
    padded = -(-linear.num_columns // PANEL) * PANEL
    out = torch.full((len(rows), padded), torch.nan)
    failed = linear._kernels.penstock_multiply(
        linear.handle, rows.data_ptr(), len(rows), threads, out.data_ptr()
    )
    assert not failed, "no memory for the rows"
    return out[:, : linear.num_columns]
