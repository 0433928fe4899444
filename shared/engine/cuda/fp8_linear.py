"""Weights in fp8 (e4m3) with a scale per output; rows are rounded to fp8 on their way in, a scale each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shared.engine.loading.linear import DenseLinear, LinearMap

FP8 = torch.float8_e4m3fn
_LARGEST = 448.0  # of e4m3
_MULTIPLE = 16  # sides that the fp8 tensor cores take


@dataclass(frozen=True, slots=True)
class Fp8Linear:
    """y = (row_codes @ codes.T) * row_scale * scale + bias, summed in float32."""

    codes: Tensor  # float8_e4m3fn [out, in]
    scales: Tensor  # float32 [1, out]
    bias: Tensor | None = None  # [out]

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)"""
        return self.codes.shape[0], self.codes.shape[1]

    def __call__(self, rows: Tensor) -> Tensor:
        """bfloat16 [T, in] -> [T, out]"""
        codes, scales = encode_rows(rows)
        if rows.device.type == "cuda" and len(rows):
            out: Tensor = torch._scaled_mm(  # noqa: SLF001  # torch has no public fp8 product yet
                codes, self.codes.T, scale_a=scales, scale_b=self.scales, out_dtype=rows.dtype
            )
        else:
            out = ((codes.float() @ self.codes.float().T) * scales * self.scales).to(rows.dtype)
        return out if self.bias is None else out + self.bias


def encode_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """fp8 codes [T, in] and float32 scales [T, 1]: the largest value of a row becomes the largest code."""
    wide = rows.float()
    scales = wide.abs().amax(-1, keepdim=True) / _LARGEST
    divisors = torch.where(scales > 0, scales, 1.0)  # a row of zeros has codes of zero
    return (wide / divisors).clamp(-_LARGEST, _LARGEST).to(FP8), scales


def to_fp8(linear: LinearMap) -> LinearMap:
    """`linear` in fp8; unchanged where its sides are not multiples of 16 or it holds codes already."""
    if not isinstance(linear, DenseLinear) or any(side % _MULTIPLE for side in linear.shape):
        return linear
    codes, scales = encode_rows(linear.weight)
    return Fp8Linear(codes, scales.T.contiguous(), linear.bias)
