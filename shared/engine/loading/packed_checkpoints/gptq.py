"""GPTQ: unsigned codes packed into int32 words along the inputs, scale and zero point per group of inputs.

    qweight [in / p, out]   p = 32 / bits codes per word, consecutive inputs from the low bits on
    qzeros  [groups, out / p]   consecutive outputs; format v1 stores zero - 1 modulo 2 ** bits, v2 zero
    scales  [groups, out]
    g_idx   [in]            the group of each input

What `desc_act` reordered (inputs of one group are not neighbours) has no group-wise form here: such a linear
is dequantized.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shared.engine.loading.linear import GROUP_MULTIPLE, Linear
from shared.engine.loading.packed_checkpoints.group_codes import grouped_linear, unpack_words
from shared.engine.loading.packed_checkpoints.packed_format import (
    FLOAT_DTYPES,
    PackedFormat,
    PackedTensors,
    TensorSpec,
    bias_spec,
    check_flags,
    check_unlisted,
    listed_modules,
    require,
)
from shared.errors import InvalidRequest

WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class GptqFormat(PackedFormat):
    bits: int
    group_size: int  # -1: a whole row
    zero_offset: int  # added to stored zeros
    reordered: bool  # desc_act: g_idx must be there
    unconverted: tuple[str, ...]  # modules_to_not_convert

    @property
    def held_codes(self) -> tuple[int, int]:
        return self.bits, self.group_size

    def holds(self, module: str, names: Collection[str]) -> bool:
        return f"{module}.qweight" in names

    def tensors(self, module: str, shape: tuple[int, int], names: Collection[str]) -> dict[str, TensorSpec]:
        check_unlisted(module, self.unconverted, "modules_to_not_convert")
        (num_out, num_in), per_word = shape, WORD_BITS // self.bits
        check_fills_words("gptq", module, shape, num_in, per_word)
        specs = word_specs(module, (num_in // per_word, num_out), shape, self.group_size, per_word)
        if self.reordered or f"{module}.g_idx" in names:
            specs[f"{module}.g_idx"] = TensorSpec((num_in,), ("I32",))
        return specs | bias_spec(module, num_out, names)

    def read(self, stored: PackedTensors, dtype: torch.dtype) -> Linear:
        scales = stored.read_scales("scales")
        codes = unpack_words(stored.read("qweight"), self.bits).permute(1, 0, 2).flatten(1)  # [out, in]
        zeros = unpack_words(stored.read("qzeros"), self.bits).flatten(1).T  # [out, groups]
        zeros = (zeros + self.zero_offset).bitwise_and_(2**self.bits - 1)
        groups = read_group_indices(stored, "g_idx", scales.shape[0]) if stored.has("g_idx") else None
        bias = stored.read_bias(dtype)
        return grouped_linear(codes, zeros, scales.T, self.bits, self.group_size, dtype, bias, groups)


def gptq_format(fields: Mapping[str, Any]) -> GptqFormat:
    """Raises InvalidRequest, naming the field that cannot be read."""
    checkpoint_format = fields.get("checkpoint_format") or "gptq"
    require(fields, "bits", fields.get("bits") in (4, 8), "4 or 8")
    require(fields, "checkpoint_format", checkpoint_format in ("gptq", "gptq_v2"), "gptq or gptq_v2")
    require(fields, "is_marlin_format", not fields.get("is_marlin_format"), "false")
    require(fields, "pack_dtype", fields.get("pack_dtype") in (None, "int32"), "int32")
    dynamic = fields.get("dynamic") or {}
    uniform = isinstance(dynamic, dict) and all(str(rule).startswith("-:") for rule in dynamic)
    require(fields, "dynamic", uniform, "without settings of single modules")
    check_flags(fields, "sym", "desc_act")
    return GptqFormat(
        fields["bits"],
        row_group_size(fields),
        1 if checkpoint_format == "gptq" else 0,
        bool(fields.get("desc_act")),
        listed_modules(fields, "modules_to_not_convert"),
    )


def row_group_size(fields: Mapping[str, Any]) -> int:
    size = fields.get("group_size")
    whole = type(size) is int and (size == -1 or (size > 0 and size % GROUP_MULTIPLE == 0))
    require(fields, "group_size", whole, f"-1 or a multiple of {GROUP_MULTIPLE}")
    assert isinstance(size, int)
    return size


def check_fills_words(
    method: str, module: str, shape: tuple[int, int], packed_size: int, per_word: int
) -> None:
    if packed_size % per_word or shape[0] % per_word:
        raise InvalidRequest(f"{module} has shape {shape}; {method} packs only multiples of {per_word}")


def word_specs(
    module: str, words: tuple[int, int], shape: tuple[int, int], group_size: int, per_word: int
) -> dict[str, TensorSpec]:
    """Return what GPTQ and AWQ have in common; `words` is the shape of the packed codes."""
    num_out, num_in = shape
    groups = 1 if group_size == -1 else math.ceil(num_in / group_size)
    return {
        f"{module}.qweight": TensorSpec(words, ("I32",)),
        f"{module}.qzeros": TensorSpec((groups, num_out // per_word), ("I32",)),
        f"{module}.scales": TensorSpec((groups, num_out), FLOAT_DTYPES),
    }


def read_group_indices(stored: PackedTensors, part: str, num_groups: int) -> Tensor:
    """[in]: the group of each input."""
    groups = stored.read(part).long()
    if groups.min() < 0 or groups.max() >= num_groups:
        raise InvalidRequest(
            f"{stored.module}.{part} names groups outside 0 to {num_groups - 1}; download the model again"
        )
    return groups
