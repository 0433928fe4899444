"""MXFP4: 4-bit floats (e2m1) in blocks of 32 inputs that share a power of two (e8m0), as gpt-oss stores them.

    <parameter>_blocks  [..., out, in / 32, 16] uint8, two values per byte, the first in the low bits
    <parameter>_scales  [..., out, in / 32] uint8, exponent + 127

A parameter is a linear's `weight`, or one of the two stacked matrices of a layer's experts. Twice a value is
a whole number from -12 to 12, so int8 codes in groups of 32 hold them exactly, where float16 has the power of
two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shared.engine.loading.linear import Linear
from shared.engine.loading.packed_checkpoints.fp8 import powers
from shared.engine.loading.packed_checkpoints.group_codes import grouped_linear
from shared.engine.loading.packed_checkpoints.packed_format import (
    PackedFormat,
    PackedTensors,
    TensorSpec,
    bias_spec,
    check_flags,
    check_known,
    check_unlisted,
    listed_modules,
)
from shared.errors import InvalidRequest

BLOCK = 32
ZERO = 12  # the code of nought
_STEPS = (0, 1, 2, 3, 4, 6, 8, 12)  # of e2m1's eight magnitudes, in halves


@dataclass(frozen=True, slots=True)
class Mxfp4Format(PackedFormat):
    unconverted: tuple[str, ...]

    @property
    def held_codes(self) -> tuple[int, int]:
        return 8, BLOCK

    def holds(self, module: str, names: Collection[str]) -> bool:
        return f"{module}.weight_blocks" in names

    def tensors(self, module: str, shape: tuple[int, int], names: Collection[str]) -> dict[str, TensorSpec]:
        check_unlisted(module, self.unconverted, "modules_to_not_convert")
        return self.parameter_tensors(f"{module}.weight", shape) | bias_spec(module, shape[0], names)

    def read(self, stored: PackedTensors, dtype: torch.dtype) -> Linear:
        return self.read_parameter(
            f"{stored.module}.weight", stored.read_tensor, dtype, stored.read_bias(dtype)
        )

    def parameter_tensors(self, parameter: str, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        """Return the tensors of any matrix, or of all experts' in one; `shape` ends with (out, in)."""
        if shape[-1] % BLOCK:
            raise InvalidRequest(
                f"{parameter} has shape {shape}; mxfp4 packs only multiples of {BLOCK} inputs"
            )
        blocks = (*shape[:-1], shape[-1] // BLOCK)
        return {
            f"{parameter}_blocks": TensorSpec((*blocks, BLOCK // 2), ("U8",)),
            f"{parameter}_scales": TensorSpec(blocks, ("U8", "F8_E8M0")),
        }

    def read_parameter(
        self, parameter: str, read: Callable[[str], Tensor], dtype: torch.dtype, bias: Tensor | None = None
    ) -> Linear:
        """One matrix [out, in]; `read` gives what `parameter_tensors` describes, of one expert where they are
        stacked."""
        scales = read(f"{parameter}_scales").view(torch.uint8)
        return mxfp4_linear(
            read(f"{parameter}_blocks").flatten(1), scales, f"{parameter}_scales", dtype, bias
        )


def mxfp4_format(fields: Mapping[str, Any]) -> Mxfp4Format:
    """Raises InvalidRequest, naming the field that cannot be read."""
    check_known(fields, ("quant_method", "modules_to_not_convert", "dequantize"))
    check_flags(fields, "dequantize")
    return Mxfp4Format(listed_modules(fields, "modules_to_not_convert"))


def mxfp4_linear(
    pairs: Tensor, exponents: Tensor, name: str, dtype: torch.dtype, bias: Tensor | None
) -> Linear:
    """`pairs` uint8 [out, in / 2], `exponents` uint8 [out, in / 32]; `name` is that of the exponents'
    tensor."""
    steps = torch.tensor([*_STEPS, *(-step for step in _STEPS)], device=pairs.device) + ZERO
    table = steps.to(torch.uint8)
    codes = torch.stack((table[(pairs & 15).int()], table[(pairs >> 4).int()]), dim=-1).flatten(1)
    zeros = torch.full_like(exponents, ZERO)
    return grouped_linear(codes, zeros, powers(exponents, name) / 2, 8, BLOCK, dtype, bias)
