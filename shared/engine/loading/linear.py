"""A linear map's weights, dense or quantized: y = x @ W.T + bias."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from shared.engine.loading.row_numbers import HALF_STEPS, quantize_rows
from shared.engine.loading.superblocks import SuperblockLinear, fused_superblocks
from shared.errors import InvalidRequest

GROUP_MULTIPLE = 32  # one vector register of bytes in the native backend
MAX_GROUP = 512  # 512 * 128 * 255 < 2 ** 24: a group's sum of half numbers is exact in float32


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

    With `minima`, minima[n, k // group] is added to that, and all zeros are 0: GGUF's formats that store a
    group's least weight. `in` need not be a multiple of `group`: the last group is then shorter. `group` is a
    multiple of 16, at most 512.

    The product makes whole numbers of the rows as well, since integer dot products are what CPUs are fast at.
    `quantize_rows` says how: every row and group of columns gets a unit u, and its x become a, about x / u:

        y[t, n] = sum over g of u[t, g] * scales[n, g] * sum over k in g of a[t, k] * (codes - zeros)[n, k]
                + sum over g of u[t, g] * minima[n, g] * sum over k in g of a[t, k]

    plus bias. The inner sums are exact before they become float32, so a row's result does not depend on its
    batch.
    """

    codes: Tensor  # uint8 [out, in], each below 2 ** bits
    scales: Tensor  # float16 [out, ceil(in / group)]
    zeros: Tensor  # uint8 [out, ceil(in / group)]
    bits: int  # 8 or 4
    group: int
    bias: Tensor | None = None  # [out]
    minima: Tensor | None = None  # float16 [out, ceil(in / group)]

    @property
    def format(self) -> tuple[int, int, bool]:
        """Return what two of them must share to be one: bits, group and whether they have minima."""
        return self.bits, self.group, self.minima is not None

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)"""
        return self.codes.shape[0], self.codes.shape[1]

    def __call__(self, rows: Tensor) -> Tensor:
        """[T, in] -> [T, out] in the dtype of `rows`."""
        numbers, units = quantize_rows(rows, self.bits, self.group)
        # Two halves of a number, so that the sums of a group are exact in float32.
        high = (numbers / HALF_STEPS).round_()
        halves = torch.cat([numbers - HALF_STEPS * high, high])  # [2 T, in]
        scales = self.scales.float().T.contiguous()  # [groups, out]
        zeros = self.zeros.float()
        minima = None if self.minima is None else self.minima.float().T.contiguous()  # [groups, out]
        sums = rows.new_zeros((len(rows), len(self.codes)), dtype=torch.float32)
        for index, start in enumerate(range(0, self.codes.shape[1], self.group)):
            columns = slice(start, start + self.group)
            steps = self.codes[:, columns].float() - zeros[:, index, None]  # [out, group]
            low_products, high_products = (halves[:, columns] @ steps.T).chunk(2)  # [T, out], whole numbers
            products = low_products.add_(high_products, alpha=HALF_STEPS)
            sums.addcmul_(products, torch.outer(units[:, index], scales[index]))
            if minima is not None:
                row_sums = numbers[:, columns].sum(1) * units[:, index]
                sums.addcmul_(row_sums[:, None], minima[index])
        if self.bias is not None:
            sums += self.bias.float()
        return sums.to(rows.dtype)


class LinearMap(Protocol):
    """A linear map as models call it: y = x @ W.T + bias, whatever the weights lie in."""

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)"""
        ...

    def __call__(self, rows: Tensor) -> Tensor:
        """[T, in] -> [T, out]"""
        ...


CodedLinear = QuantLinear | SuperblockLinear
"""A linear map whose weights are codes."""
Linear = DenseLinear | CodedLinear
"""A linear map as checkpoints store it."""


def as_stored(linear: LinearMap) -> Linear:
    """Return `linear` as the map of a checkpoint that it is. Raises TypeError for a backend's own."""
    if not isinstance(linear, Linear):
        raise TypeError(f"a {type(linear).__name__} is no map of a checkpoint any more")
    return linear


def dequantize(linear: CodedLinear, dtype: torch.dtype) -> Tensor:
    """[out, in]: the weights that the codes stand for.

    A code's distance from its zero has 8 bits and a scale 11: exact in float32, rounded once to `dtype` (with
    minima also when the least weight is added, in float32).
    """
    if isinstance(linear, SuperblockLinear):
        return linear.weights(dtype)
    groups = torch.arange(linear.codes.shape[1], device=linear.codes.device) // linear.group
    distances = linear.codes.float() - linear.zeros.float()[:, groups]
    weights = distances * linear.scales.float()[:, groups]
    if linear.minima is not None:
        weights += linear.minima.float()[:, groups]
    return weights.to(dtype)


def in_groups(linear: SuperblockLinear) -> QuantLinear:
    """K-quants as codes in groups, for where they must be of one format with other codes.

    A step times its scale is rounded to float16 there, and so is a least weight. Raises InvalidRequest where
    that is no finite number.
    """
    factors = linear.group_factors()
    if not all(each is None or torch.isfinite(each).all() for each in (factors.scales, factors.minima)):
        raise InvalidRequest(
            "scales of K-quants times their steps are no finite float16 numbers; the file is damaged"
        )
    bits = 4 if (linear.bits == 4).all() else 8
    return QuantLinear(
        linear.codes, factors.scales, factors.zeros, bits, factors.group, linear.bias, factors.minima
    )


def with_rows(linear: Linear, change: Callable[[Tensor], Tensor]) -> Linear:
    """`linear` with `change` applied to everything of which each output has a row, its bias among it."""
    parts: dict[str, Any] = {field.name: getattr(linear, field.name) for field in fields(linear)}
    for name, part in parts.items():
        if isinstance(part, Tensor):
            parts[name] = change(part)
    return replace(linear, **parts)


def deinterleaved(linear: Linear) -> Linear:
    """`linear` with its even outputs first, then its odd ones."""
    return with_rows(linear, lambda tensor: torch.cat((tensor[::2], tensor[1::2])))


def fuse(parts: Sequence[Linear], dtype: torch.dtype) -> Linear:
    """One map with the outputs of all parts in order; a bias that only some have is zero for the others.

    Quantized parts of one format stay quantized, and so do K-quants, of whatever bits; any other mixture
    becomes dense in `dtype`.
    """
    if len(parts) == 1:
        return parts[0]
    biases = [part.bias for part in parts if part.bias is not None]
    if biases:
        biases = [biases[0].new_zeros(part.shape[0]) if part.bias is None else part.bias for part in parts]
    bias = torch.cat(biases) if biases else None
    in_superblocks = [part for part in parts if isinstance(part, SuperblockLinear)]
    if len(in_superblocks) == len(parts):
        return fused_superblocks(in_superblocks, bias)
    quantized = [part for part in parts if isinstance(part, QuantLinear)]
    if len(quantized) < len(parts) or len({part.format for part in quantized}) > 1:
        weights = [
            part.weight if isinstance(part, DenseLinear) else dequantize(part, dtype) for part in parts
        ]
        return DenseLinear(torch.cat(weights), bias)
    minima = [part.minima for part in quantized if part.minima is not None]
    return QuantLinear(
        torch.cat([part.codes for part in quantized]),
        torch.cat([part.scales for part in quantized]),
        torch.cat([part.zeros for part in quantized]),
        quantized[0].bits,
        quantized[0].group,
        bias,
        torch.cat(minima) if minima else None,
    )
