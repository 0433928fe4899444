"""The weights of a BERT encoder (Devlin et al., 2019), in the form that both backends compute with."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from shared.engine.loading.linear import DenseLinear


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """`qkv` [3 * hidden, hidden] and `up` [inner, hidden], `output` and `down` back; norms [hidden]."""

    qkv: DenseLinear
    output: DenseLinear
    up: DenseLinear
    down: DenseLinear
    attention_norm: Tensor
    attention_norm_bias: Tensor
    output_norm: Tensor
    output_norm_bias: Tensor


@dataclass(frozen=True, slots=True)
class EncoderWeights:
    """float32. `positions` begins with the position of a text's first token."""

    heads: int
    norm_eps: float
    words: Tensor  # [vocab, hidden]
    positions: Tensor  # [positions, hidden]
    kinds: Tensor  # [kinds, hidden]
    norm: Tensor
    norm_bias: Tensor
    layers: tuple[EncoderLayer, ...]
