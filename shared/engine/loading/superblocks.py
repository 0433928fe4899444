"""GGUF's K-quants as a linear map: superblocks of 256 columns, with the whole numbers that the file has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from shared.engine.loading.row_numbers import SUPER_COLUMNS, quantize_rows, super_numbers

STEP_COLUMNS = 16
"""The columns that share a step, in matrices of all bits; of 4 and 5 bits two such have the same."""
LEAST_COLUMNS = 32
"""The columns that share a least weight."""
SUPER_BITS = (4, 5, 6)
"""The bits that codes may have."""
ZERO_OF_SIX = 32
"""The code of a weight of six bits that is nought; of fewer bits a least weight is subtracted."""
_HALF, _GROUPS = SUPER_COLUMNS // 2, SUPER_COLUMNS // LEAST_COLUMNS


class GroupFactors(NamedTuple):
    """The factors of K-quants as codes in groups: W = (code - zero) * scale, or code * scale + minimum."""

    scales: Tensor  # float16 [out, in / group]
    zeros: Tensor  # uint8 [out, in / group]
    minima: Tensor | None  # float16 [out, in / group]
    group: int  # 16 or 32


@dataclass(frozen=True, slots=True)
class SuperblockLinear:
    """W = scale * step * (code - zero) - minimum * least: K-quants of 4, 5 and 6 bits, row by row.

    Scales and minima are of a superblock of 256 columns, in float16; steps and least weights are whole
    numbers of six bits (steps of codes of six bits have eight).

    Of 5 and 6 bits a row x becomes whole numbers a = x / u of a unit u per superblock:

        y[t, n] = sum over s of u[t, s] * (scales[n, s] * sum over k in s of a[t, k] * (step * (code - zero))
                                           - minima[n, s] * sum over k in s of a[t, k] * least)

    plus bias. The inner sums are exact before they become float32 (of six bits those of either half), so a
    row's result does not depend on its batch. Of 4 bits rows are rounded as `QuantLinear` says, with a unit
    for 32 columns; the sums of those are exact, and are added up in float32.
    """

    codes: Tensor  # uint8 [out, in]
    steps: Tensor  # int8 [out, in / 16]
    least: Tensor  # uint8 [out, in / 32]; 0 where codes have six bits
    scales: Tensor  # float16 [out, in / 256]
    minima: Tensor  # float16 [out, in / 256]; 0 where codes have six bits
    bits: Tensor  # uint8 [out]: 4, 5 or 6
    bias: Tensor | None = None  # [out]

    @property
    def format(self) -> tuple[int, int, bool]:
        """Return what two of them share, beside what tells them from other maps: see `QuantLinear.format`."""
        return 0, SUPER_COLUMNS, True

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)"""
        return self.codes.shape[0], self.codes.shape[1]

    def __call__(self, rows: Tensor) -> Tensor:
        """[T, in] -> [T, out] in the dtype of `rows`."""
        sums = rows.new_empty((len(rows), len(self.codes)), dtype=torch.float32)
        for bits, outputs in self._by_bits():
            part = self._of_outputs(outputs)
            sums[:, outputs] = _nibble_sums(part, rows) if bits == 4 else _exact_sums(part, rows, bits)
        if self.bias is not None:
            sums += self.bias.float()
        return sums.to(rows.dtype)

    def weights(self, dtype: torch.dtype) -> Tensor:
        """[out, in]: what the codes stand for, rounded once to float32 and once to `dtype`."""
        weights = torch.empty(self.shape, dtype=dtype, device=self.codes.device)
        for bits, outputs in self._by_bits():
            part = self._of_outputs(outputs)
            some = _stepped(part, bits, 0, self.shape[1]).float()
            some.mul_(part.scales.float().repeat_interleave(SUPER_COLUMNS, 1))
            minima = part.minima.float().repeat_interleave(SUPER_COLUMNS // LEAST_COLUMNS, 1)
            some.sub_(minima.mul_(part.least.float()).repeat_interleave(LEAST_COLUMNS, 1))
            weights[outputs] = some.to(dtype)
        return weights

    def group_factors(self) -> GroupFactors:
        """Return scales, zeros and minima of the same codes in groups, each rounded to float16, beyond which
        they are infinite."""
        six = self.bits == 6
        group = STEP_COLUMNS if six.any() else LEAST_COLUMNS
        scales = self.scales.float().repeat_interleave(SUPER_COLUMNS // group, 1)
        scales = scales.mul_(self.steps[:, :: group // STEP_COLUMNS].float()).half()
        zeros = torch.where(six, ZERO_OF_SIX, 0).to(torch.uint8)[:, None].expand_as(scales).contiguous()
        minima = None
        if not six.all():
            least = -self.minima.float().repeat_interleave(SUPER_COLUMNS // LEAST_COLUMNS, 1)
            least = least.mul_(self.least.float()).half().repeat_interleave(LEAST_COLUMNS // group, 1)
            minima = torch.where(six[:, None], (-zeros.float() * scales.float()).half(), least)
            zeros = torch.zeros_like(zeros)
        return GroupFactors(scales, zeros, minima, group)

    def _by_bits(self) -> list[tuple[int, Tensor]]:
        """Return the indices of the outputs that have codes of so many bits."""
        outputs = ((bits, torch.where(self.bits == bits)[0]) for bits in SUPER_BITS)
        return [(bits, chosen) for bits, chosen in outputs if len(chosen)]

    def _of_outputs(self, outputs: Tensor) -> SuperblockLinear:
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        chosen = {name: part[outputs] for name, part in parts.items() if part is not None}
        return replace(self, **chosen)


def _nibble_sums(linear: SuperblockLinear, rows: Tensor) -> Tensor:
    numbers, units = quantize_rows(rows, 4, LEAST_COLUMNS)
    groups = numbers.view(len(rows), -1, LEAST_COLUMNS)
    offsets = groups.sum(2) * units  # [T, in / 32]
    sums = rows.new_zeros((len(rows), len(linear.codes)), dtype=torch.float32)
    for index in range(linear.shape[1] // SUPER_COLUMNS):
        scaled, least = torch.zeros_like(sums), torch.zeros_like(sums)
        for group in range(index * _GROUPS, (index + 1) * _GROUPS):
            codes = linear.codes[:, group * LEAST_COLUMNS : (group + 1) * LEAST_COLUMNS]
            products = (groups[:, group].double() @ codes.double().T).float()  # [T, out]
            steps = linear.steps[:, group * LEAST_COLUMNS // STEP_COLUMNS].float()
            scaled.addcmul_(products, torch.outer(units[:, group], steps))
            least.addcmul_(offsets[:, group, None], linear.least[:, group].float())
        sums.addcmul_(scaled, linear.scales[:, index].float())
        sums.addcmul_(least, linear.minima[:, index].float(), value=-1)
    return sums


def _exact_sums(linear: SuperblockLinear, rows: Tensor, bits: int) -> Tensor:
    numbers, units = super_numbers(rows)
    exact = numbers.double()
    sums = rows.new_zeros((len(rows), len(linear.codes)), dtype=torch.float32)
    for index in range(linear.shape[1] // SUPER_COLUMNS):
        start, end = index * SUPER_COLUMNS, (index + 1) * SUPER_COLUMNS
        steps = _stepped(linear, bits, start, end).T.double()  # [256, out]
        first = exact[:, start : start + _HALF] @ steps[:_HALF]  # [T, out]
        second = exact[:, start + _HALF : end] @ steps[_HALF:]
        products = first.float() + second.float() if bits == 6 else (first + second).float()
        products.mul_(linear.scales[:, index].float())
        row_sums = exact[:, start:end].view(len(rows), -1, LEAST_COLUMNS).sum(2)
        least = linear.least[:, start // LEAST_COLUMNS : end // LEAST_COLUMNS].T.double()
        products.addcmul_((row_sums @ least).float(), linear.minima[:, index].float(), value=-1)
        sums.addcmul_(products, units[:, index, None])
    return sums


def _stepped(linear: SuperblockLinear, bits: int, start: int, end: int) -> Tensor:
    """int16 [out, end - start]"""
    steps = linear.steps[:, start // STEP_COLUMNS : end // STEP_COLUMNS].to(torch.int16)
    zero = ZERO_OF_SIX if bits == 6 else 0
    return (linear.codes[:, start:end].to(torch.int16) - zero) * steps.repeat_interleave(STEP_COLUMNS, 1)


def fused_superblocks(parts: Sequence[SuperblockLinear], bias: Tensor | None) -> SuperblockLinear:
    """One map with the outputs of all parts in order, each with the bits that it has."""
    return SuperblockLinear(
        torch.cat([part.codes for part in parts]),
        torch.cat([part.steps for part in parts]),
        torch.cat([part.least for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat([part.minima for part in parts]),
        torch.cat([part.bits for part in parts]),
        bias,
    )
