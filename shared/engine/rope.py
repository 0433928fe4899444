"""Rotary position embedding: the angle table and its application."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shared.engine.config import RopeConfig


def rope_table(rope: RopeConfig, head_dim: int, num_positions: int, dtype: torch.dtype) -> Tensor:
    """[num_positions, head_dim]: cosines in the first half, sines in the second.

    Angles are computed in fp32 and rounded to `dtype` last, in the order that transformers does it.
    """
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = torch.outer(positions, _inverse_frequencies(rope, head_dim))
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(dtype)


def apply_rope(heads: Tensor, table_rows: Tensor) -> Tensor:
    """Rotate `heads` [T, H, D] by `table_rows` [T, D]; pairs are (i, i + D/2)."""
    half = heads.shape[-1] // 2
    cos, sin = table_rows[:, None, :half], table_rows[:, None, half:]
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """[head_dim / 2] in fp32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3(frequencies, rope)
    return frequencies


def _llama3(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    context = rope.original_max_position_tokens
    wavelengths = 2 * math.pi / frequencies
    blend = (context / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - blend) * frequencies / rope.factor + blend * frequencies
    stretched = torch.where(wavelengths > context / rope.low_freq_factor, frequencies / rope.factor, blended)
    return torch.where(wavelengths < context / rope.high_freq_factor, frequencies, stretched)
