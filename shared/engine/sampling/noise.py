"""Counter-based Gumbel noise: a pure function of (seed, position, vocabulary id).

No generator state exists, so a retried, migrated or speculated token meets the same noise. The hash is
the splitmix64 finaliser; arithmetic is 64-bit and wraps, which int64 tensors do like u64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_MASK64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_UNIFORM_BITS = 52  # (bits + 0.5) / 2^52 is exact in float64, and neither 0 nor 1


def gumbel_noise(seeds: Sequence[int], positions: Sequence[int], vocab_ids: Tensor) -> Tensor:
    """float64 [len(seeds), len(vocab_ids)]: row r, column c is G(seeds[r], positions[r], vocab_ids[c])."""
    keys = [
        _signed(_mix_int(_mix_int(seed + _GOLDEN) + position))
        for seed, position in zip(seeds, positions, strict=True)
    ]
    steps = (vocab_ids + 1) * _signed(_GOLDEN)
    bits = _mix_(torch.tensor(keys, dtype=torch.int64)[:, None] + steps)
    bits >>= 64 - _UNIFORM_BITS
    bits &= (1 << _UNIFORM_BITS) - 1
    uniform = bits.double().add_(0.5).mul_(2.0**-_UNIFORM_BITS)
    return uniform.log_().neg_().log_().neg_()


def _mix_(values: Tensor) -> Tensor:
    """splitmix64's finaliser, in place."""
    values ^= _shift_right(values, 30)
    values *= _signed(_MULTIPLIERS[0])
    values ^= _shift_right(values, 27)
    values *= _signed(_MULTIPLIERS[1])
    values ^= _shift_right(values, 31)
    return values


def _mix_int(value: int) -> int:
    value &= _MASK64
    value = ((value ^ (value >> 30)) * _MULTIPLIERS[0]) & _MASK64
    value = ((value ^ (value >> 27)) * _MULTIPLIERS[1]) & _MASK64
    return value ^ (value >> 31)


def _shift_right(values: Tensor, bits: int) -> Tensor:
    """Logical shift: int64's own copies the sign."""
    return (values >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
