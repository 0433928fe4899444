"""Checkpoints whose linears are stored quantized: GPTQ and AWQ, read from an unmodified directory.

Both keep, instead of a linear's `weight` [out, in], unsigned codes packed into int32 words, a scale and a
zero point per group of inputs: W[n, k] = (code[n, k] - zero[n, group of k]) * scale[n, group of k].

    GPTQ  qweight [in / p, out]   p = 32 / bits codes per word, consecutive inputs from the low bits on
          qzeros  [groups, out / p]   consecutive outputs; format v1 stores zero - 1 modulo 2 ** bits, v2 zero
          scales  [groups, out]
          g_idx   [in]            the group of each input
    AWQ   qweight [in, out / 8]   outputs of a word in the order 0 2 4 6 1 3 5 7 from the low bits on
          qzeros  [groups, out / 8]   in the same order
          scales  [groups, out]

What `desc_act` reordered (inputs of one group are not neighbours) has no group-wise form here: such a linear
is dequantized, exactly up to one rounding to the model's dtype, and runs dense. So does one whose scales
float16 cannot hold. Groups too long for exact sums (a whole row where group_size is -1) are cut into groups
of 128 or fewer that share scale and zero: the weights are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shared.engine.loading.linear import GROUP_MULTIPLE, MAX_GROUP, DenseLinear, Linear, QuantLinear
from shared.errors import InvalidRequest

WORD_BITS = 32
CUT_GROUP = 128
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # output j of a word is its nibble AWQ_PLACES[j]
FLOAT_DTYPES = ("F16", "BF16", "F32")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a tensor must be before it is read; dtypes in the spelling of safetensors."""

    shape: tuple[int, ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PackedFormat:
    method: str  # "gptq" or "awq"
    bits: int
    group_size: int  # -1: a whole row
    zero_offset: int  # added to stored zeros
    reordered: bool  # desc_act: g_idx must be there
    unconverted: tuple[str, ...]  # modules_to_not_convert

    def holds(self, module: str, names: Collection[str]) -> bool:
        """Whether the checkpoint with tensors `names` stores this linear packed."""
        return f"{module}.qweight" in names

    def tensors(self, module: str, shape: tuple[int, int], names: Collection[str]) -> dict[str, TensorSpec]:
        """Name and form of every tensor of a packed linear of `shape` (out, in).

        GPTQ checkpoints may carry a bias (of zeros) that the architecture does not have; it is used.
        """
        if any(f".{each}." in f".{module}." for each in self.unconverted):
            raise InvalidRequest(
                f"{module} is packed, but quantization_config lists it in modules_to_not_convert; "
                "config.json and weights do not belong together"
            )
        num_out, num_in = shape
        per_word = WORD_BITS // self.bits
        packed_size = num_in if self.method == "gptq" else num_out
        if packed_size % per_word or num_out % per_word:
            raise InvalidRequest(
                f"{module} has shape {shape}; {self.method} packs only multiples of {per_word}"
            )
        groups = 1 if self.group_size == -1 else math.ceil(num_in / self.group_size)
        words = (num_in // per_word, num_out) if self.method == "gptq" else (num_in, num_out // per_word)
        specs = {
            f"{module}.qweight": TensorSpec(words, ("I32",)),
            f"{module}.qzeros": TensorSpec((groups, num_out // per_word), ("I32",)),
            f"{module}.scales": TensorSpec((groups, num_out), FLOAT_DTYPES),
        }
        if self.method == "gptq" and (self.reordered or f"{module}.g_idx" in names):
            specs[f"{module}.g_idx"] = TensorSpec((num_in,), ("I32",))
        if f"{module}.bias" in names:
            specs[f"{module}.bias"] = TensorSpec((num_out,), FLOAT_DTYPES)
        return specs


def packed_format(fields: Mapping[str, Any]) -> PackedFormat:
    """`quantization_config` of config.json. Raises InvalidRequest, naming the field that cannot be read."""
    method = fields.get("quant_method")
    if method == "gptq":
        return _gptq_format(fields)
    if method == "awq":
        return _awq_format(fields)
    raise InvalidRequest(
        f"quantization_config: quant_method {method!r} is not supported; use a GPTQ, AWQ or plain checkpoint"
    )


def read_packed(
    packed: PackedFormat,
    module: str,
    names: Collection[str],
    read: Callable[[str], Tensor],
    dtype: torch.dtype,
) -> Linear:
    """The linear of `module`; `read(name)` gives a tensor as it is stored and `tensors` describes it.

    Raises InvalidRequest, naming the tensor, for scales that are not finite and groups that do not exist.
    """
    stored_scales = read(f"{module}.scales")
    _check_scales(stored_scales, module)
    bias = read(f"{module}.bias").to(dtype) if f"{module}.bias" in names else None
    if bias is not None and not bias.any():
        bias = None
    words, zero_words = read(f"{module}.qweight"), read(f"{module}.qzeros")
    if packed.method == "gptq":
        codes = _unpack(words, packed.bits).permute(1, 0, 2).flatten(1)  # [out, in]
        zeros = _unpack(zero_words, packed.bits).flatten(1).T  # [out, groups]
    else:
        order = list(AWQ_PLACES)
        codes = _unpack(words, packed.bits)[..., order].flatten(1).T
        zeros = _unpack(zero_words, packed.bits)[..., order].flatten(1).T
    zeros = (zeros + packed.zero_offset).bitwise_and_(2**packed.bits - 1)
    group_size = codes.shape[1] if packed.group_size == -1 else packed.group_size
    trivial = torch.arange(codes.shape[1], device=codes.device) // group_size
    groups = _group_indices(read, module, names, trivial, zeros.shape[1])
    scales = stored_scales.T.half()
    if not torch.equal(groups, trivial) or not torch.equal(scales.float(), stored_scales.T.float()):
        distances = codes.float() - zeros.float()[:, groups]
        return DenseLinear((distances * stored_scales.T.float()[:, groups]).to(dtype), bias)
    group = _exact_group(packed.group_size)
    shared = trivial[::group]  # the stored group of each group
    return QuantLinear(
        codes.contiguous(),
        scales[:, shared].contiguous(),
        zeros[:, shared].contiguous(),
        packed.bits,
        group,
        bias,
    )


def _gptq_format(fields: Mapping[str, Any]) -> PackedFormat:
    checkpoint_format = fields.get("checkpoint_format") or "gptq"
    _require(fields, "bits", fields.get("bits") in (4, 8), "4 or 8")
    _require(fields, "checkpoint_format", checkpoint_format in ("gptq", "gptq_v2"), "gptq or gptq_v2")
    _require(fields, "is_marlin_format", not fields.get("is_marlin_format"), "false")
    _require(fields, "pack_dtype", fields.get("pack_dtype") in (None, "int32"), "int32")
    dynamic = fields.get("dynamic") or {}
    uniform = isinstance(dynamic, dict) and all(str(rule).startswith("-:") for rule in dynamic)
    _require(fields, "dynamic", uniform, "without settings of single modules")
    _check_flags(fields, "sym", "desc_act")
    return PackedFormat(
        "gptq",
        fields["bits"],
        _group_size(fields),
        1 if checkpoint_format == "gptq" else 0,
        bool(fields.get("desc_act")),
        _unconverted(fields),
    )


def _awq_format(fields: Mapping[str, Any]) -> PackedFormat:
    version = fields.get("version") or "gemm"
    _require(fields, "bits", fields.get("bits") == 4, "4")
    _require(fields, "version", isinstance(version, str) and version.lower() == "gemm", "gemm")
    _check_flags(fields, "zero_point", "sym")
    return PackedFormat("awq", 4, _group_size(fields), 0, False, _unconverted(fields))


def _require(fields: Mapping[str, Any], name: str, holds: bool, wanted: str) -> None:
    if not holds:
        raise InvalidRequest(f"quantization_config: {name} is {fields.get(name)!r}, it must be {wanted}")


def _check_flags(fields: Mapping[str, Any], *names: str) -> None:
    for name in names:
        _require(fields, name, isinstance(fields.get(name), bool | None), "true or false")


def _group_size(fields: Mapping[str, Any]) -> int:
    size = fields.get("group_size")
    whole = type(size) is int and (size == -1 or (size > 0 and size % GROUP_MULTIPLE == 0))
    _require(fields, "group_size", whole, f"-1 or a multiple of {GROUP_MULTIPLE}")
    assert isinstance(size, int)
    return size


def _unconverted(fields: Mapping[str, Any]) -> tuple[str, ...]:
    listed = fields.get("modules_to_not_convert") or []
    names = isinstance(listed, list) and all(isinstance(name, str) for name in listed)
    _require(fields, "modules_to_not_convert", names, "a list of module names")
    return tuple(listed)


def _exact_group(group_size: int) -> int:
    """The largest group not above what sums exactly in float32 that cuts `group_size` evenly."""
    if group_size == -1:
        return CUT_GROUP
    return group_size if group_size <= MAX_GROUP else math.gcd(group_size, CUT_GROUP)


def _check_scales(scales: Tensor, module: str) -> None:
    if not torch.isfinite(scales).all():
        raise InvalidRequest(
            f"{module}.scales holds values that are not finite numbers; the checkpoint is damaged"
        )


def _group_indices(
    read: Callable[[str], Tensor], module: str, names: Collection[str], trivial: Tensor, num_groups: int
) -> Tensor:
    """[in]: the group of each input."""
    if f"{module}.g_idx" not in names:
        return trivial
    groups = read(f"{module}.g_idx").long()
    if groups.min() < 0 or groups.max() >= num_groups:
        raise InvalidRequest(
            f"{module}.g_idx names groups outside 0 to {num_groups - 1}; download the model again"
        )
    return groups


def _unpack(words: Tensor, bits: int) -> Tensor:
    """int32 [R, C] -> uint8 [R, C, 32 / bits], from the low bits on."""
    parts = words.contiguous().view(torch.uint8).view(*words.shape, 4)  # low byte first
    if bits == 8:
        return parts
    return torch.stack((parts & 15, parts >> 4), dim=-1).flatten(2)
