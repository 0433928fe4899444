"""A model's weights in the form that the kernels read, piece by piece and by name."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.engine.dtypes import TORCH_DTYPES
from shared.engine.loading.layers import DenseMlp, LayerWeights, MoeMlp
from shared.engine.loading.linear import DenseLinear, Linear, as_stored, dequantize
from shared.engine.loading.model_config import ModelConfig
from shared.engine.native.linear import NativeLinear, as_packed

NORMS = ("attention_in_norm", "query_norm", "key_norm", "attention_out_norm", "mlp_in_norm", "mlp_out_norm")


@dataclass(frozen=True, slots=True)
class PackedArray:
    """Numbers that the kernels read as they are; `memory` keeps them alive."""

    address: int
    dtype: str  # in the spelling of safetensors
    shape: tuple[int, ...]
    memory: object

    @classmethod
    def of(cls, tensor: Tensor) -> PackedArray:
        tensor = tensor.contiguous()
        dtype = "BF16" if tensor.element_size() == 2 else "F32"
        return cls(tensor.data_ptr(), dtype, tuple(tensor.shape), tensor)


PackedPart = NativeLinear | PackedArray


def packed_parts(
    kernels: ctypes.CDLL,
    config: ModelConfig,
    layers: Iterable[LayerWeights],
    *,
    embedding: Tensor | None,
    head: Linear,
    final_norm: Tensor,
) -> Iterator[tuple[str, PackedPart]]:
    """Return what `NativeModel` takes, in order. `embedding` None: the columns of `head` are the embedding,
    too.

    Layer by layer: a checkpoint and its packed copy are never whole in memory together.
    """
    if embedding is not None:
        yield "embedding", PackedArray.of(embedding)
    yield "head", NativeLinear.pack(kernels, head)
    del embedding, head  # the largest matrices: who takes them may drop them
    yield "final_norm", PackedArray.of(final_norm)
    for index, weights in enumerate(layers):
        for name, part in _layer_parts(kernels, config, weights):
            yield f"layers.{index}.{name}", part


def _layer_parts(
    kernels: ctypes.CDLL, config: ModelConfig, weights: LayerWeights
) -> Iterator[tuple[str, PackedPart]]:
    for name in NORMS:
        norm: Tensor | None = getattr(weights, name)
        if norm is not None:
            yield name, PackedArray.of(norm)
    if weights.sinks is not None:
        yield "sinks", PackedArray.of(weights.sinks)
    yield "qkv", NativeLinear.pack(kernels, as_stored(weights.qkv))
    yield "output", NativeLinear.pack(kernels, as_stored(weights.output))
    mlps = [weights.mlp] if isinstance(weights.mlp, DenseMlp) else list(weights.mlp.experts)
    if not isinstance(weights.mlp, DenseMlp):
        for name, part in _routing_parts(kernels, weights.mlp):
            yield name, part
    for expert, gate_up in enumerate(
        _alike(config, [as_packed(as_stored(mlp.gate_up), gated=True) for mlp in mlps])
    ):
        yield f"mlp.{expert}.gate_up", NativeLinear.pack(kernels, gate_up, gated=True)
    for expert, down in enumerate(_alike(config, [as_stored(mlp.down) for mlp in mlps])):
        yield f"mlp.{expert}.down", NativeLinear.pack(kernels, down)


def _routing_parts(kernels: ctypes.CDLL, mlp: MoeMlp) -> Iterator[tuple[str, PackedPart]]:
    """The router, with the shared expert's gate as its last row, the choice's bias and the shared expert."""
    gate = [] if mlp.shared_gate is None else [mlp.shared_gate]
    bias = mlp.router_bias
    if bias is not None and gate:
        bias = torch.cat([bias, bias.new_zeros(1)])
    yield "router", NativeLinear.pack(kernels, DenseLinear(torch.cat([mlp.router, *gate]), bias))
    if mlp.choice_bias is not None:
        yield "choice_bias", PackedArray.of(mlp.choice_bias)
    if mlp.shared is not None:
        yield "mlp.shared.gate_up", NativeLinear.pack(kernels, as_stored(mlp.shared.gate_up), gated=True)
        yield "mlp.shared.down", NativeLinear.pack(kernels, as_stored(mlp.shared.down))


def _alike(config: ModelConfig, linears: Sequence[Linear]) -> list[Linear]:
    """Bring experts to one format, since they take the same rows: dense where only some are packed."""
    formats = {None if isinstance(each, DenseLinear) else each.format for each in linears}
    if len(formats) == 1:
        return list(linears)
    dtype = TORCH_DTYPES[config.dtype]
    return [
        each if isinstance(each, DenseLinear) else DenseLinear(dequantize(each, dtype), each.bias)
        for each in linears
    ]
