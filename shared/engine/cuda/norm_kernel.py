"""RMS norm, with the residual addition before it, in one pass over the rows."""

# Triton compiles these functions: their arguments have no Python types, and constants are named as constants.
# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from shared.engine.cuda.launch import LAUNCH


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[T, H] -> [T, H]: normalised in float32, times `weight` float32 [H], rounded to the rows' dtype."""
    out = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
    _launch(rows, rows, rows, weight, out, eps, adds=False)
    return out


def add_rms_norm(hidden: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(hidden + delta, its RMS norm), both [T, H]; the norm is of the rounded sum."""
    total, out = torch.empty_like(hidden), torch.empty_like(hidden)
    _launch(hidden, delta, total, weight, out, eps, adds=True)
    return total, out


def _launch(
    hidden: Tensor, delta: Tensor, total: Tensor, weight: Tensor, out: Tensor, eps: float, *, adds: bool
) -> None:
    num_rows, width = hidden.shape
    if num_rows == 0:
        return
    padded = triton.next_power_of_2(width)
    _norm_kernel[(num_rows,)](
        hidden,
        delta,
        total,
        weight,
        out,
        hidden.stride(0),
        delta.stride(0),
        eps,
        WIDTH=width,
        PADDED=padded,
        ADDS=adds,
        num_warps=min(16, max(1, padded // 512)),
        **LAUNCH,
    )


@triton.jit
def _norm_kernel(
    hidden,
    delta,
    total,
    weight,
    out,
    hidden_stride,
    delta_stride,
    eps,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    ADDS: tl.constexpr,
):
    """One row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    inside = column < WIDTH
    loaded = tl.load(hidden + row * hidden_stride + column, mask=inside, other=0.0)
    wide = loaded.to(tl.float32)
    if ADDS:
        wide += tl.load(delta + row * delta_stride + column, mask=inside, other=0.0).to(tl.float32)
        wide = wide.to(loaded.dtype).to(tl.float32)
        tl.store(total + row * WIDTH + column, wide.to(loaded.dtype), mask=inside)
    inverse = 1.0 / tl.sqrt_rn(tl.sum(wide * wide, axis=0) / WIDTH + eps)
    normed = wide * inverse * tl.load(weight + column, mask=inside, other=0.0)
    tl.store(out + row * WIDTH + column, normed.to(loaded.dtype), mask=inside)
