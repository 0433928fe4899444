"""Rotary position embedding: the angle table and its application."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shared.engine.loading.model_config import RopeConfig


def rope_table(rope: RopeConfig, head_dim: int, num_positions: int, dtype: torch.dtype) -> Tensor:
    """[num_positions, rotary_dim]: cosines in the first half, sines in the second, both times
    `attention_factor`.

    `num_positions` is the longest sequence that there will be: `dynamic` and `longrope` choose their
    frequencies by it, once, because keys that were rotated and cached cannot change. Angles are computed in
    fp32 and rounded to `dtype` last, in the order that transformers does it.
    """
    assert rope.rotary_dim <= head_dim
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies(rope, num_positions))
    return (torch.cat((angles.cos(), angles.sin()), dim=-1) * rope.attention_factor).to(dtype)


def apply_rope(heads: Tensor, table_rows: Tensor) -> Tensor:
    """Rotate the first `rotary_dim` R of D dimensions of `heads` [T, H, D] by `table_rows` [T, R].

    Pairs are (i, i + R/2); dimensions from R on stay as they are.
    """
    rotary_dim = table_rows.shape[-1]
    half = rotary_dim // 2
    cos, sin = table_rows[:, None, :half], table_rows[:, None, half:]
    first, second, rest = heads[..., :half], heads[..., half:rotary_dim], heads[..., rotary_dim:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def inverse_frequencies(rope: RopeConfig, num_positions: int) -> Tensor:
    """[rotary_dim / 2] in fp32, for sequences of up to `num_positions` tokens."""
    if rope.kind == "dynamic":
        return _default(_grown_theta(rope, num_positions), rope.rotary_dim)
    frequencies = _default(rope.theta, rope.rotary_dim)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3(frequencies, rope)
    if rope.kind == "yarn":
        return _yarn(rope)
    if rope.kind == "longrope":
        chosen = rope.long_factors if rope.is_long(num_positions) else rope.short_factors
        factors = torch.tensor(chosen, dtype=torch.float32)
        return 1.0 / (factors * _wavelengths(rope.theta, rope.rotary_dim))
    return frequencies


def _wavelengths(theta: float, rotary_dim: int) -> Tensor:
    """[rotary_dim / 2] wavelengths / 2 pi."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim
    return torch.pow(theta, exponents)


def _default(theta: float, rotary_dim: int) -> Tensor:
    return 1.0 / _wavelengths(theta, rotary_dim)


def _grown_theta(rope: RopeConfig, num_positions: int) -> float:
    """NTK scaling: a larger base where sequences may be longer than those of the training."""
    growth = rope.factor * rope.stretched_tokens(num_positions) / rope.original_max_position_tokens - (
        rope.factor - 1
    )
    power: float = growth ** (rope.rotary_dim / (rope.rotary_dim - 2))
    return rope.theta * power


def _llama3(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    context = rope.original_max_position_tokens
    wavelengths = 2 * math.pi / frequencies
    blend = (context / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - blend) * frequencies / rope.factor + blend * frequencies
    stretched = torch.where(wavelengths > context / rope.low_freq_factor, frequencies / rope.factor, blended)
    return torch.where(wavelengths < context / rope.high_freq_factor, frequencies, stretched)


def _yarn(rope: RopeConfig) -> Tensor:
    """Kept where a wavelength turns `beta_fast` times in the trained context, stretched by `factor` where it
    turns `beta_slow` times, and a linear blend over the dimensions between."""
    low, high = _yarn_dim(rope, rope.beta_fast), _yarn_dim(rope, rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a division by zero
    dims = torch.arange(rope.rotary_dim // 2, dtype=torch.float32)
    kept = 1 - ((dims - low) / (high - low)).clamp(0, 1)
    wavelengths = _wavelengths(rope.theta, rope.rotary_dim)
    return (1.0 / (rope.factor * wavelengths)) * (1 - kept) + (1.0 / wavelengths) * kept


def _yarn_dim(rope: RopeConfig, turns: float) -> float:
    """The dimension whose wavelength turns `turns` times in the trained context."""
    context = rope.original_max_position_tokens
    return rope.rotary_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))
