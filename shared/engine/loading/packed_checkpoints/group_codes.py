"""Codes, scales and zeros of groups as checkpoints have them, made a `QuantLinear` where that is exact."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shared.engine.loading.linear import GROUP_MULTIPLE, MAX_GROUP, DenseLinear, Linear, QuantLinear

CUT_GROUP = 128


def grouped_linear(
    codes: Tensor,
    zeros: Tensor,
    stored_scales: Tensor,
    bits: int,
    group_size: int,
    dtype: torch.dtype,
    bias: Tensor | None,
    groups: Tensor | None = None,
) -> Linear:
    """W[n, k] = (codes[n, k] - zeros[n, group of k]) * scales[n, group of k].

    `codes` uint8 [out, in], `zeros` uint8 and `stored_scales` (floats) [out, groups]; `groups` [in] is the
    group of each input, without it `group_size` (-1: all) neighbours are one. Groups too long for exact sums
    (a whole row where group_size is -1) are cut into groups of 128 or fewer that share scale and zero: the
    weights are the same. What has no exact form here becomes dense, with one rounding to `dtype`: inputs of
    one group that are not neighbours, groups that are no multiple of 32, scales that float16 cannot hold.
    """
    num_in = codes.shape[1]
    whole = num_in if group_size == -1 else group_size
    trivial = torch.arange(num_in, device=codes.device) // whole
    groups = trivial if groups is None else groups
    scales = stored_scales.half()
    neighbours = torch.equal(groups, trivial) and (group_size == -1 or group_size % GROUP_MULTIPLE == 0)
    if not neighbours or not torch.equal(scales.float(), stored_scales.float()):
        distances = codes.float() - zeros.float()[:, groups]
        return DenseLinear((distances * stored_scales.float()[:, groups]).to(dtype), bias)
    group = _exact_group(group_size)
    shared = trivial[::group]  # the stored group of each group
    return QuantLinear(
        codes.contiguous(), scales[:, shared].contiguous(), zeros[:, shared].contiguous(), bits, group, bias
    )


def unpack_words(words: Tensor, bits: int) -> Tensor:
    """int32 [R, C] -> uint8 [R, C, 32 / bits], from the low bits on; `bits` is 4 or 8."""
    parts = words.contiguous().view(torch.uint8).view(*words.shape, 4)  # low byte first
    if bits == 8:
        return parts
    return torch.stack((parts & 15, parts >> 4), dim=-1).flatten(2)


def _exact_group(group_size: int) -> int:
    """The largest group not above what sums exactly in float32 that cuts `group_size` evenly."""
    if group_size == -1:
        return CUT_GROUP
    return group_size if group_size <= MAX_GROUP else math.gcd(group_size, CUT_GROUP)
