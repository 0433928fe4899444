"""compressed-tensors: what llm-compressor and others write, integers or FP8 beside their scales.

    weight            [out, in] int8 or e4m3          naive-, int- and float-quantized
    weight_packed     [out, in / p] int32             pack-quantized: p = 32 / bits codes per word, from the
                                                      low bits on, each with 2 ** (bits - 1) added
                      [out, in / 2] uint8             mxfp4-pack-quantized: see `mxfp4.py`
    weight_shape      [2]                             pack-quantized: (out, in)
    weight_scale      [1], [out, 1], [out, groups] or [blocks of out, blocks of in], by the strategy
    weight_zero_point as weight_scale, int8; packed along the outputs as weight_packed is along the inputs;
                      symmetric schemes have none, or zeros
    weight_g_idx      [in]                            the group of each input, or -1: neighbours

W = (code - zero point) * scale. Integers keep their codes in groups where `grouped_linear` can; FP8 and
blocks are dequantized. Scales of activations and of a KV cache are not read.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shared.engine.loading.linear import DenseLinear, Linear
from shared.engine.loading.packed_checkpoints.compressed_schemes import (
    NameRules,
    SchemeGroup,
    WeightScheme,
    name_rules,
    read_groups,
)
from shared.engine.loading.packed_checkpoints.fp8 import FP8_DTYPES, KV_SCALES, scaled_blocks
from shared.engine.loading.packed_checkpoints.gptq import WORD_BITS, read_group_indices
from shared.engine.loading.packed_checkpoints.group_codes import grouped_linear, unpack_words
from shared.engine.loading.packed_checkpoints.mxfp4 import mxfp4_linear
from shared.engine.loading.packed_checkpoints.packed_format import (
    FLOAT_DTYPES,
    PackedFormat,
    PackedTensors,
    TensorSpec,
    bias_spec,
)
from shared.errors import InvalidRequest

ROW_SCALES = (".input_scale", ".input_zero_point")


@dataclass(frozen=True, slots=True)
class CompressedTensorsFormat(PackedFormat):
    groups: tuple[SchemeGroup, ...]
    ignored: NameRules
    stored_kv_scales: bool

    @property
    def held_codes(self) -> tuple[int, int] | None:
        scheme = next((group.weights for group in self.groups if group.weights is not None), None)
        if scheme is None or scheme.strategy == "block" or (scheme.is_float and scheme.stored == "plain"):
            return None
        return (8 if scheme.is_float else scheme.bits), scheme.group_size

    def holds(self, module: str, names: Collection[str]) -> bool:
        return f"{module}.weight_packed" in names or f"{module}.weight_scale" in names

    def tensors(self, module: str, shape: tuple[int, int], names: Collection[str]) -> dict[str, TensorSpec]:
        scheme = self._scheme(module)
        (num_out, num_in), per_word = shape, WORD_BITS // scheme.bits
        specs: dict[str, TensorSpec] = {}
        scales = _scale_spec(scheme, shape, module)
        specs[f"{module}.weight_scale"] = scales
        if scheme.stored == "mxfp4":
            specs[f"{module}.weight_packed"] = TensorSpec((num_out, num_in // 2), ("U8",))
        elif scheme.stored == "plain":
            specs[f"{module}.weight"] = TensorSpec(shape, FP8_DTYPES if scheme.is_float else ("I8",))
        else:
            words = math.ceil(num_in / per_word)
            specs[f"{module}.weight_packed"] = TensorSpec((num_out, words), ("I32",))
            specs[f"{module}.weight_shape"] = TensorSpec((2,), ("I64", "I32"))
        if not scheme.symmetric or f"{module}.weight_zero_point" in names:
            specs[f"{module}.weight_zero_point"] = _zero_spec(scheme, scales)
        if scheme.reordered or f"{module}.weight_g_idx" in names:
            specs[f"{module}.weight_g_idx"] = TensorSpec((num_in,), ("I32", "I64"))
        return specs | bias_spec(module, num_out, names)

    def read(self, stored: PackedTensors, dtype: torch.dtype) -> Linear:
        scheme, bias = self._scheme(stored.module), stored.read_bias(dtype)
        if scheme.stored == "mxfp4":
            name = f"{stored.module}.weight_scale"
            exponents = stored.read("weight_scale").view(torch.uint8)
            return mxfp4_linear(stored.read("weight_packed"), exponents, name, dtype, bias)
        scales = stored.read_scales("weight_scale")
        if scheme.is_float or scheme.strategy == "block":
            _check_no_zeros(stored)
            weight, block = stored.read("weight"), _block_of(scheme, stored.shape)
            blocks = scales.float().view(math.ceil(stored.shape[0] / block[0]), -1)
            return DenseLinear(scaled_blocks(weight, blocks, block, dtype, stored.module), bias)
        codes = _codes(stored, scheme)
        scales = scales.view(-1, 1) if scheme.strategy != "group" else scales  # [out or 1, groups]
        zeros = _zeros(stored, scheme, scales).expand(stored.shape[0], -1)
        scales = scales.expand(stored.shape[0], -1)
        groups = _groups(stored, scales.shape[1])
        return grouped_linear(codes, zeros, scales, scheme.bits, scheme.group_size, dtype, bias, groups)

    def may_ignore(self, name: str) -> bool:
        static_rows = any(group.static_rows for group in self.groups)
        return (static_rows and name.endswith(ROW_SCALES)) or (
            self.stored_kv_scales and name.endswith(KV_SCALES)
        )

    def _scheme(self, module: str) -> WeightScheme:
        """Exact names first, then patterns, then classes: groups may overlap."""
        matching = [group for group in self.groups if group.targets.match(module)]
        nearest = min(matching, key=lambda group: group.targets.distance(module), default=None)
        found = None if nearest is None else nearest.weights
        if found is None or self.ignored.match(module):
            raise InvalidRequest(
                f"{module} is packed, but quantization_config has no weights for it or lists it in ignore; "
                "config.json and weights do not belong together"
            )
        return found


def compressed_tensors_format(fields: Mapping[str, Any]) -> CompressedTensorsFormat:
    """Raises InvalidRequest, naming the field that cannot be read."""
    groups = read_groups(fields)
    ignored = name_rules(fields, "ignore", "quantization_config")
    return CompressedTensorsFormat(groups, ignored, fields.get("kv_cache_scheme") is not None)


def _scale_spec(scheme: WeightScheme, shape: tuple[int, int], module: str) -> TensorSpec:
    num_out, num_in = shape
    if scheme.strategy == "group":
        if num_in % scheme.group_size:
            raise InvalidRequest(
                f"{module} has {num_in} inputs, which groups of {scheme.group_size} do not divide; "
                "config.json and weights do not belong together"
            )
        dtypes = ("U8", "F8_E8M0") if scheme.stored == "mxfp4" else FLOAT_DTYPES
        return TensorSpec((num_out, num_in // scheme.group_size), dtypes)
    if scheme.strategy == "block":
        rows, columns = scheme.block
        return TensorSpec((math.ceil(num_out / rows), math.ceil(num_in / columns)), FLOAT_DTYPES)
    if scheme.strategy == "channel":
        return TensorSpec((num_out, 1), FLOAT_DTYPES, (num_out,))
    return TensorSpec((1,), FLOAT_DTYPES, ())


def _zero_spec(scheme: WeightScheme, scales: TensorSpec) -> TensorSpec:
    if scheme.stored == "words" and not scheme.symmetric and scheme.strategy != "tensor":
        rows, columns = scales.shape
        return TensorSpec((math.ceil(rows * scheme.bits / WORD_BITS), columns), ("I32",))
    dtypes = (*FP8_DTYPES, "I8", "U8") if scheme.is_float else ("I8",)
    return TensorSpec(scales.shape, dtypes, scales.other_shape)


def _block_of(scheme: WeightScheme, shape: tuple[int, int]) -> tuple[int, int]:
    """(out, in) that share a scale."""
    by_strategy = {
        "tensor": shape,
        "channel": (1, shape[1]),
        "group": (1, scheme.group_size),
        "block": scheme.block,
    }
    return by_strategy[scheme.strategy]


def _codes(stored: PackedTensors, scheme: WeightScheme) -> Tensor:
    """uint8 [out, in]"""
    if scheme.stored == "plain":
        return _unsigned(stored, "weight", scheme.bits)
    stated = stored.read("weight_shape").tolist()
    if stated != list(stored.shape):
        raise InvalidRequest(
            f"{stored.module}.weight_shape says {stated}, config.json says {list(stored.shape)}; "
            "config.json and weights do not belong together"
        )
    return unpack_words(stored.read("weight_packed"), scheme.bits).flatten(1)[:, : stored.shape[1]]


def _zeros(stored: PackedTensors, scheme: WeightScheme, scales: Tensor) -> Tensor:
    """uint8 of the shape of `scales`"""
    if scheme.symmetric:
        _check_no_zeros(stored)
        return torch.full(scales.shape, 2 ** (scheme.bits - 1), dtype=torch.uint8, device=scales.device)
    if scheme.stored == "plain" or scheme.strategy == "tensor":
        return _unsigned(stored, "weight_zero_point", scheme.bits).view(scales.shape)
    words = stored.read("weight_zero_point").T.contiguous()
    return unpack_words(words, scheme.bits).flatten(1)[:, : len(scales)].T


def _unsigned(stored: PackedTensors, part: str, bits: int) -> Tensor:
    """int8 around zero -> uint8 below 2 ** bits"""
    signed, largest = stored.read(part).short(), 2 ** (bits - 1)
    if signed.min() < -largest or signed.max() >= largest:
        raise InvalidRequest(
            f"{stored.module}.{part} holds more than {bits} bits; "
            "config.json and weights do not belong together"
        )
    unsigned: Tensor = signed + largest
    return unsigned.to(torch.uint8)


def _check_no_zeros(stored: PackedTensors) -> None:
    if stored.has("weight_zero_point") and stored.read("weight_zero_point").float().any():
        raise InvalidRequest(
            f"{stored.module}.weight_zero_point is not zero, but quantization_config says that its scheme is "
            "symmetric; config.json and weights do not belong together"
        )


def _groups(stored: PackedTensors, num_groups: int) -> Tensor | None:
    """[in]: the group of each input; None where neighbours are one."""
    if not stored.has("weight_g_idx") or (stored.read("weight_g_idx") < 0).any():
        return None
    return read_group_indices(stored, "weight_g_idx", num_groups)
