"""A BERT encoder on the kernels: texts of any lengths, none padded; see encoder.h."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shared.engine.loading.encoder import EncoderLayer, EncoderWeights
from shared.engine.loading.linear import DenseLinear
from shared.engine.loading.quantize import quantize
from shared.engine.native.library import EncoderLayerShape, EncoderShape, TextsShape, free_with
from shared.engine.native.linear import PANEL, NativeLinear
from shared.engine.native.packing import PackedPart
from shared.errors import InternalError

Arithmetic = Literal["float32", "bfloat16", "int8"]
Pooling = Literal["none", "mean", "first"]
Ids = npt.NDArray[np.int32]
States = npt.NDArray[np.float32]

INT8_GROUPS = (384, 256, 128, 64, 32)
"""Columns that share a scale: the largest of these that divides the width, for every group has its price."""
_POOLING: dict[str, int] = {"none": 0, "mean": 1, "first": 2}
_VECTOR = 16  # floats


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """Texts one behind the other: those of text i are [starts[i], starts[i + 1]), at least one.

    Ids and kinds are below what the weights have, no text is longer than they have positions.
    """

    starts: Ids  # [texts + 1]
    token_ids: Ids  # [tokens]
    kinds: Ids  # [tokens]

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]], kinds: Sequence[Sequence[int]] | None = None) -> EncoderInput:
        """Make the input, with tokens of kind 0 where no kinds are given."""
        starts = np.zeros(len(texts) + 1, dtype=np.int32)
        np.cumsum([len(text) for text in texts], out=starts[1:])
        flat = np.fromiter((id_ for text in texts for id_ in text), np.int32, int(starts[-1]))
        if kinds is None:
            return cls(starts, flat, np.zeros_like(flat))
        return cls(starts, flat, np.fromiter((kind for each in kinds for kind in each), np.int32, len(flat)))


def fits_kernels(weights: EncoderWeights) -> bool:
    """Return whether their shapes are such that the kernels compute them."""
    hidden = weights.words.shape[1]
    inner = weights.layers[0].up.shape[0]
    return not hidden % PANEL and not inner % PANEL and not (hidden // weights.heads) % _VECTOR


def packed_linears(
    kernels: ctypes.CDLL, weights: EncoderWeights, arithmetic: Arithmetic
) -> Iterator[tuple[str, NativeLinear]]:
    """Pack the linear maps of an encoder, one after the other, to be computed in `arithmetic`."""
    for index, layer in enumerate(weights.layers):
        for field in fields(layer):
            part: DenseLinear | Tensor = getattr(layer, field.name)
            if isinstance(part, DenseLinear):
                yield _name(index, field.name), _packed(kernels, part, arithmetic)


def most_packed(weights: EncoderWeights) -> int:
    """Return how many linear maps an encoder has at most."""
    return len(fields(EncoderLayer)) * len(weights.layers)


def _name(index: int, field: str) -> str:
    return f"layers.{index}.{field}"


def _packed(kernels: ctypes.CDLL, linear: DenseLinear, arithmetic: Arithmetic) -> NativeLinear:
    if arithmetic == "int8":
        group = next(each for each in INT8_GROUPS if linear.shape[1] % each == 0)
        return NativeLinear.pack(kernels, quantize(linear, 8, group), coarse_rows=True)
    dtype = torch.bfloat16 if arithmetic == "bfloat16" else torch.float32
    return NativeLinear.pack(kernels, DenseLinear(linear.weight.to(dtype), linear.bias))


class NativeEncoder:
    """`encode` may be called from any number of threads, each of which computes its texts alone."""

    def __init__(
        self, kernels: ctypes.CDLL, weights: EncoderWeights, packed: Mapping[str, PackedPart]
    ) -> None:
        """`weights` must fit (see `fits_kernels`); their linear maps are those that are `packed`."""
        self._kernels = kernels
        self._hidden = weights.words.shape[1]
        self._kept: list[object] = []
        layers = (EncoderLayerShape * len(weights.layers))(
            *(self._layer(layer, index, packed) for index, layer in enumerate(weights.layers))
        )
        shape = EncoderShape(
            self._hidden,
            weights.heads,
            len(weights.layers),
            weights.norm_eps,
            *(self._place(each) for each in (weights.words, weights.positions, weights.kinds)),
            self._place(weights.norm),
            self._place(weights.norm_bias),
        )
        handle = kernels.penstock_encoder(ctypes.byref(shape), layers)
        if not handle:
            raise InternalError("no memory for the encoder; use a smaller one")
        self._handle: int = handle
        free_with(self, kernels.penstock_free_encoder, handle)

    def encode(self, texts: EncoderInput, pooling: Pooling) -> States:
        """The last states of all tokens [tokens, hidden], or of each text their mean or its first one
        [texts, hidden]."""
        rows = len(texts.token_ids) if pooling == "none" else len(texts.starts) - 1
        out = np.empty((rows, self._hidden), dtype=np.float32)
        if not rows:
            return out
        shape = TextsShape(
            len(texts.starts) - 1,
            *(each.ctypes.data for each in (texts.starts, texts.token_ids, texts.kinds)),
        )
        if self._kernels.penstock_encode(
            self._handle, ctypes.byref(shape), _POOLING[pooling], out.ctypes.data
        ):
            raise InternalError("no memory for these texts; encode fewer at a time")
        return out

    def _layer(self, layer: EncoderLayer, index: int, packed: Mapping[str, PackedPart]) -> EncoderLayerShape:
        parts = []
        for field in fields(layer):
            part: DenseLinear | Tensor = getattr(layer, field.name)
            if isinstance(part, DenseLinear):
                linear = packed[_name(index, field.name)]
                assert isinstance(linear, NativeLinear)
                self._kept.append(linear)
                parts.append(linear.handle)
            else:
                parts.append(self._place(part))
        return EncoderLayerShape(*parts)

    def _place(self, tensor: Tensor) -> int:
        tensor = tensor.float().contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()
