"""The small numbers that GGML's blocks hold: bits of bytes, one a number."""

from __future__ import annotations

import torch
from torch import Tensor


def halves(stored: Tensor) -> Tensor:
    """uint8 [n, 2 m] -> float16 [n, m]"""
    return stored.contiguous().view(torch.float16)


def nibbles(stored: Tensor, run: int) -> Tensor:
    """uint8 [n, m] -> [n, 2 m]: of each `run` bytes first all low nibbles, then all high ones."""
    runs = stored.reshape(len(stored), -1, 1, run)
    return torch.cat((runs & 15, runs >> 4), dim=2).flatten(1)


def pairs_of_bits(stored: Tensor) -> Tensor:
    """uint8 [n, 32 m] -> [n, 128 m]: of each 32 bytes first all lowest pairs of bits, at last all highest."""
    place = torch.arange(0, 8, 2, dtype=torch.uint8, device=stored.device)[:, None]
    return (stored.reshape(len(stored), -1, 1, 32) >> place & 3).flatten(1)


def bit_planes(stored: Tensor) -> Tensor:
    """uint8 [n, 32] -> [n, 256]: first the lowest bits of all bytes, at last the highest."""
    place = torch.arange(8, dtype=torch.uint8, device=stored.device)[:, None]
    return (stored[:, None] >> place & 1).flatten(1)


def fifth_bits(stored: Tensor) -> Tensor:
    """uint8 [n, 4] -> [n, 32]: 16 where a weight's bit is set."""
    place = torch.arange(8, dtype=torch.uint8, device=stored.device)
    return (stored[:, :, None] >> place & 1).flatten(1) << 4


def six_bit_factors(stored: Tensor) -> tuple[Tensor, Tensor]:
    """uint8 [n, 12] -> the steps and least weights of eight groups, uint8 [n, 8].

    The low six bits of bytes 0 to 3 and of 4 to 7 are those of groups 0 to 3. Those of groups 4 to 7 have
    their low four bits in the nibbles of 8 to 11, and their two high ones in the bytes' tops.
    """
    first, second, mixed = stored[:, :4], stored[:, 4:8], stored[:, 8:]
    steps = torch.cat((first & 63, mixed & 15 | first >> 6 << 4), dim=1)
    least = torch.cat((second & 63, mixed >> 4 | second >> 6 << 4), dim=1)
    return steps, least
