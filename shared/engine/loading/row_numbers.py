"""Rows of activations as whole numbers of a unit per group of columns, which codes are multiplied by."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

HALF_STEPS = 256  # what the high half of a row's number counts
ROW_STEPS = {8: 127 * 128, 4: 119 * 256}
"""The units that the largest |x| of a group of columns has, by the bits of the codes that the row meets."""
SUPER_COLUMNS = 256
"""The columns of a superblock of K-quants."""
SUPER_STEPS = 4095
"""The same for a superblock of codes of 5 or 6 bits."""


def quantize_rows(rows: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """Whole numbers [T, in], held as float32, and the unit of each group of columns, float32 [T, groups].

    A group's unit is its largest |x| over ROW_STEPS[bits]. What meets codes of 8 bits is rounded to whole
    numbers: 15 bits. Where rows meet codes of 4 bits two columns share a part of their digits, which makes
    the product cheaper (native/quantized_rows.h): of each 16 columns, the second eight become multiples of
    16, and the first eight what lies nearest of the numbers that end, to the base of 16, as the partner's
    sixteenth does. That is 12 bits.
    """
    width = rows.shape[1]
    grouped = functional.pad(rows.float(), (0, -width % group)).view(len(rows), -(-width // group), group)
    units = grouped.abs().amax(-1) / ROW_STEPS[bits]
    numbers = grouped / torch.where(units > 0, units, 1)[..., None]  # a group of zeros stays zeros
    if bits == 4:
        first, second = numbers.view(*numbers.shape[:-1], -1, 2, 8).unbind(-2)
        sixteens = (second / 16).round_()
        digits = torch.remainder(sixteens, 16)
        first = ((first - digits) / 16).round_() * 16 + digits
        numbers = torch.stack([first, sixteens * 16], -2).flatten(-3)
    else:
        numbers.round_()
    return numbers.flatten(1)[:, :width], units


def super_numbers(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers [T, in], held as float32, and the unit of each superblock, float32 [T, superblocks]: what
    meets codes of 5 and 6 bits."""
    grouped = rows.float().reshape(len(rows), -1, SUPER_COLUMNS)
    units = grouped.abs().amax(-1) / SUPER_STEPS
    numbers = grouped / torch.where(units > 0, units, 1)[..., None]  # a superblock of zeros stays zeros
    return numbers.round_().clamp_(-SUPER_STEPS, SUPER_STEPS).flatten(1), units
