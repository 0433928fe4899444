"""GGML's K-quants of 4, 5 and 6 bits, taken apart without rounding anything.

Of Q4_K and Q5_K a block of 256 weights is two float16 numbers, twelve bytes of steps and least weights of six
bits, and codes in groups of 32; of Q6_K sixteen steps of eight bits, codes, and one float16 number.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from shared.engine.loading.gguf.bit_fields import bit_planes, halves, nibbles, pairs_of_bits, six_bit_factors
from shared.engine.loading.superblocks import SuperblockLinear


def _q4_k(blocks: Tensor) -> tuple[Tensor, ...]:
    return (nibbles(blocks[:, 16:], 32), *_with_minima(blocks))


def _q5_k(blocks: Tensor) -> tuple[Tensor, ...]:
    codes = nibbles(blocks[:, 48:], 32) | bit_planes(blocks[:, 16:48]) << 4
    return (codes, *_with_minima(blocks))


def _with_minima(blocks: Tensor) -> tuple[Tensor, ...]:
    steps, least = six_bit_factors(blocks[:, 4:16])
    factors = halves(blocks[:, :4])
    return steps.to(torch.int8).repeat_interleave(2, 1), least, factors[:, :1], factors[:, 1:]


def _q6_k(blocks: Tensor) -> tuple[Tensor, ...]:
    # Twice 128 weights, in four runs of 32: the low bits of runs 0 and 1 are low nibbles, of 2 and 3 high
    # ones, and byte i of the high bits holds two bits for weight i of each run.
    codes = nibbles(blocks[:, :128], 64) | pairs_of_bits(blocks[:, 128:192]) << 4
    steps = blocks[:, 192:208].contiguous().view(torch.int8)
    nothing = torch.zeros((len(blocks), 8), dtype=torch.uint8, device=blocks.device)
    scales = halves(blocks[:, 208:])
    return codes, steps, nothing, scales, torch.zeros_like(scales)


_TYPES: dict[str, tuple[int, Callable[[Tensor], tuple[Tensor, ...]]]] = {
    "Q4_K": (4, _q4_k),
    "Q5_K": (5, _q5_k),
    "Q6_K": (6, _q6_k),
}
"""The bits of the codes, and blocks uint8 [n, bytes] -> codes, steps, least, scales and minima."""


def read_superblocks(blocks: Tensor, type_name: str, num_out: int) -> SuperblockLinear:
    """The matrix of uint8 [n, bytes of a block], one of these. Whether scales are finite is not looked
    at."""
    bits, unpack = _TYPES[type_name]
    codes, steps, least, scales, minima = (part.reshape(num_out, -1) for part in unpack(blocks))
    of_rows = torch.full((num_out,), bits, dtype=torch.uint8, device=blocks.device)
    return SuperblockLinear(codes, steps, least, scales.contiguous(), minima.contiguous(), of_rows)
