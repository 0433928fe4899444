"""A matrix product in Triton whose sums have one order, whatever the number of rows."""
# Triton compiles these functions: their arguments have no Python types, and constants are named as constants.
# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"
# ruff: noqa: N803, PLR0917

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from shared.engine.cuda.launch import INTERPRETED, LAUNCH
from shared.engine.loading.linear import DenseLinear, LinearMap

# Constants: they decide the order of the sums, and so the bits of the result.
_TILE_ROWS, _TILE_OUTPUTS, _STEP = 32, 64, 64


@dataclass(frozen=True, slots=True)
class InvariantLinear:
    """DenseLinear for deterministic mode: cuBLAS chooses its kernel, and the order of sums, by batch size."""

    weight: Tensor  # [out, in]
    bias: Tensor | None

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)"""
        return self.weight.shape[0], self.weight.shape[1]

    def __call__(self, rows: Tensor) -> Tensor:
        """[T, in] -> [T, out]"""
        num_rows, width = rows.shape
        num_outputs = len(self.weight)
        out = torch.empty(num_rows, num_outputs, dtype=rows.dtype, device=rows.device)
        if num_rows == 0:
            return out
        grid = (triton.cdiv(num_rows, _TILE_ROWS), triton.cdiv(num_outputs, _TILE_OUTPUTS))
        _linear_kernel[grid](
            rows,
            self.weight,
            self.bias if self.bias is not None else self.weight,
            out,
            num_rows,
            num_outputs,
            width,
            rows.stride(0),
            self.weight.stride(0),
            BIASED=self.bias is not None,
            TILE_ROWS=_TILE_ROWS,
            TILE_OUTPUTS=_TILE_OUTPUTS,
            STEP=_STEP,
            WIDEN=INTERPRETED,
            **LAUNCH,
        )
        return out


def invariant(linear: LinearMap) -> LinearMap:
    """`linear` with products that do not depend on the batch; codes have such products as they are."""
    if not isinstance(linear, DenseLinear):
        return linear
    return InvariantLinear(linear.weight, linear.bias)


@triton.jit(do_not_specialize=["num_rows"])  # one binary for every number of rows
def _linear_kernel(
    rows,
    weight,
    bias,
    out,
    num_rows,
    num_outputs,
    width,
    row_stride,
    weight_stride,
    BIASED: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    STEP: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One tile of rows by one tile of outputs, over all of `width` in order."""
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    output = tl.program_id(1) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    in_rows, in_outputs = row < num_rows, output < num_outputs
    row_place = row.to(tl.int64) * row_stride
    weight_place = output.to(tl.int64) * weight_stride
    sums = tl.full([TILE_ROWS, TILE_OUTPUTS], 0.0, tl.float32)
    for start in range(0, width, STEP):
        column = start + tl.arange(0, STEP)
        inside = column < width
        left = tl.load(
            rows + row_place[:, None] + column[None, :], mask=in_rows[:, None] & inside[None, :], other=0.0
        )
        right = tl.load(
            weight + weight_place[None, :] + column[:, None],
            mask=in_outputs[None, :] & inside[:, None],
            other=0.0,
        )
        if WIDEN:
            left, right = left.to(tl.float32), right.to(tl.float32)
        sums = tl.dot(left, right, sums, input_precision="ieee")
    if BIASED:
        sums += tl.load(bias + output, mask=in_outputs, other=0.0).to(tl.float32)[None, :]
    place = row.to(tl.int64)[:, None] * num_outputs + output[None, :]
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=in_rows[:, None] & in_outputs[None, :])
