"""A linear map's weights, dense or quantized: y = x @ W.T + bias."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class DenseLinear:
    weight: Tensor  # [out, in] in the model's dtype
    bias: Tensor | None = None  # [out]

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)"""
        return self.weight.shape[0], self.weight.shape[1]

    def __call__(self, rows: Tensor) -> Tensor:
        """[T, in] -> [T, out]"""
        return functional.linear(rows, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class QuantLinear:
    """Group-wise quantized: W[n, k] = (codes[n, k] - zeros[n, k // group]) * scales[n, k // group].

    `in` need not be a multiple of `group`: the last group is then shorter.
    """

    codes: Tensor  # uint8 [out, in], each below 2 ** bits
    scales: Tensor  # float16 [out, ceil(in / group)]
    zeros: Tensor  # uint8 [out, ceil(in / group)]
    bits: int  # 8 or 4
    group: int
    bias: Tensor | None = None  # [out]

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)"""
        return self.codes.shape[0], self.codes.shape[1]

    def __call__(self, rows: Tensor) -> Tensor:
        """[T, in] -> [T, out]"""
        return functional.linear(rows, dequantize(self, rows.dtype), self.bias)


Linear = DenseLinear | QuantLinear


def dequantize(linear: QuantLinear, dtype: torch.dtype) -> Tensor:
    """[out, in]: the weights that the codes stand for."""
    groups = torch.arange(linear.codes.shape[1]) // linear.group
    zeros, scales = linear.zeros[:, groups].float(), linear.scales[:, groups].float()
    return ((linear.codes.float() - zeros) * scales).to(dtype)
