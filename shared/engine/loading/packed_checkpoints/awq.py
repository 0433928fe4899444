"""AWQ: unsigned 4-bit codes packed into int32 words along the outputs, scale and zero point per group of
inputs.

qweight [in, out / 8]   outputs of a word in the order 0 2 4 6 1 3 5 7 from the low bits on
qzeros  [groups, out / 8]   in the same order
scales  [groups, out]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from shared.engine.loading.linear import Linear
from shared.engine.loading.packed_checkpoints.gptq import check_fills_words, row_group_size, word_specs
from shared.engine.loading.packed_checkpoints.group_codes import grouped_linear, unpack_words
from shared.engine.loading.packed_checkpoints.packed_format import (
    PackedFormat,
    PackedTensors,
    TensorSpec,
    bias_spec,
    check_flags,
    check_unlisted,
    listed_modules,
    require,
)

BITS = 4
PER_WORD = 8
PLACES = [0, 4, 1, 5, 2, 6, 3, 7]  # output j of a word is its nibble PLACES[j]


@dataclass(frozen=True, slots=True)
class AwqFormat(PackedFormat):
    group_size: int  # -1: a whole row
    unconverted: tuple[str, ...]  # modules_to_not_convert

    @property
    def held_codes(self) -> tuple[int, int]:
        return BITS, self.group_size

    def holds(self, module: str, names: Collection[str]) -> bool:
        return f"{module}.qweight" in names

    def tensors(self, module: str, shape: tuple[int, int], names: Collection[str]) -> dict[str, TensorSpec]:
        check_unlisted(module, self.unconverted, "modules_to_not_convert")
        num_out, num_in = shape
        check_fills_words("awq", module, shape, num_out, PER_WORD)
        specs = word_specs(module, (num_in, num_out // PER_WORD), shape, self.group_size, PER_WORD)
        return specs | bias_spec(module, num_out, names)

    def read(self, stored: PackedTensors, dtype: torch.dtype) -> Linear:
        scales = stored.read_scales("scales")
        codes = unpack_words(stored.read("qweight"), BITS)[..., PLACES].flatten(1).T
        zeros = unpack_words(stored.read("qzeros"), BITS)[..., PLACES].flatten(1).T
        return grouped_linear(codes, zeros, scales.T, BITS, self.group_size, dtype, stored.read_bias(dtype))


def awq_format(fields: Mapping[str, Any]) -> AwqFormat:
    """Raises InvalidRequest, naming the field that cannot be read."""
    version = fields.get("version") or "gemm"
    require(fields, "bits", fields.get("bits") == BITS, "4")
    require(fields, "version", isinstance(version, str) and version.lower() == "gemm", "gemm")
    check_flags(fields, "zero_point", "sym")
    return AwqFormat(row_group_size(fields), listed_modules(fields, "modules_to_not_convert"))
