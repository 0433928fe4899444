"""FP8 (e4m3) weights with a scale per block, or one per tensor, as DeepSeek, Qwen 3 and others publish them.

    weight            [out, in] e4m3
    weight_scale_inv  [ceil(out / a), ceil(in / b)] for weight_block_size [a, b], as floats or as powers of
    two
                      (e8m0); a number where there are no blocks, which may also be called `weight_scale`

W = weight * scale, whatever the name says. Scales of activations (`activation_scale`, `input_scale`) are not
read. No integers hold these values, so they are dequantized: exact in float32, rounded once to the model's
dtype.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shared.engine.loading.linear import DenseLinear
from shared.engine.loading.packed_checkpoints.packed_format import (
    FLOAT_DTYPES,
    PackedFormat,
    PackedTensors,
    TensorSpec,
    bias_spec,
    check_flags,
    check_known,
    check_unlisted,
    listed_modules,
    require,
)
from shared.errors import InvalidRequest

FP8_DTYPES = ("F8_E4M3",)
POWER_DTYPES = ("F8_E8M0", "U8")
POWER_BIAS = 127
NOT_A_POWER = 255  # e8m0's one value that is no number
KV_SCALES = (".k_scale", ".v_scale", ".q_scale", ".k_zero_point", ".v_zero_point")
"""The scales of a KV cache in FP8. Ours is stored as `kv_dtype` says, with scales of its own."""
ROW_SCALES = (".activation_scale", ".input_scale")

_FIELDS = (
    *(
        "quant_method",
        "activation_scheme",
        "weight_block_size",
        "fmt",
        "scale_fmt",
        "expert_dtype",
        "dequantize",
    ),
    *("modules_to_not_convert", "ignored_layers", "modules_to_convert", "kv_cache_scheme"),
    "is_checkpoint_fp8_serialized",
)


@dataclass(frozen=True, slots=True)
class Fp8Format(PackedFormat):
    block: tuple[int, int] | None  # (out, in) that share a scale; None: all do
    static_rows: bool  # scales of activations are in the checkpoint
    stored_kv_scales: bool
    unconverted: tuple[str, ...]

    @property
    def held_codes(self) -> None:
        return None

    def holds(self, module: str, names: Collection[str]) -> bool:
        return any(f"{module}.{part}" in names for part in ("weight_scale_inv", "weight_scale"))

    def tensors(self, module: str, shape: tuple[int, int], names: Collection[str]) -> dict[str, TensorSpec]:
        check_unlisted(module, self.unconverted, "modules_to_not_convert")
        specs = {f"{module}.weight": TensorSpec(shape, FP8_DTYPES)}
        if self.block is not None:
            blocks = math.ceil(shape[0] / self.block[0]), math.ceil(shape[1] / self.block[1])
            specs[f"{module}.weight_scale_inv"] = TensorSpec(blocks, FLOAT_DTYPES + POWER_DTYPES)
        else:
            part = "weight_scale_inv" if f"{module}.weight_scale_inv" in names else "weight_scale"
            specs[f"{module}.{part}"] = TensorSpec((), FLOAT_DTYPES, (1,))
        return specs | bias_spec(module, shape[0], names)

    def read(self, stored: PackedTensors, dtype: torch.dtype) -> DenseLinear:
        part = "weight_scale_inv" if stored.has("weight_scale_inv") else "weight_scale"
        scales = read_float_or_power(stored, part)
        scales = scales if self.block is not None else scales.view(1, 1)
        weight = scaled_blocks(
            stored.read("weight"), scales, self.block or stored.shape, dtype, stored.module
        )
        return DenseLinear(weight, stored.read_bias(dtype))

    def may_ignore(self, name: str) -> bool:
        return (self.static_rows and name.endswith(ROW_SCALES)) or (
            self.stored_kv_scales and name.endswith(KV_SCALES)
        )


def fp8_format(fields: Mapping[str, Any]) -> Fp8Format:
    """Raises InvalidRequest, naming the field that cannot be read."""
    check_known(fields, _FIELDS)
    require(fields, "fmt", fields.get("fmt") in (None, "e4m3"), "e4m3")
    require(fields, "scale_fmt", fields.get("scale_fmt") in (None, "float", "ue8m0"), "float or ue8m0")
    require(fields, "expert_dtype", fields.get("expert_dtype") in (None, "fp8"), "fp8")
    require(fields, "modules_to_convert", not fields.get("modules_to_convert"), "null")
    scheme = fields.get("activation_scheme", "dynamic")
    require(fields, "activation_scheme", scheme in ("dynamic", "static"), "dynamic or static")
    check_flags(fields, "dequantize", "is_checkpoint_fp8_serialized")
    require(
        fields,
        "is_checkpoint_fp8_serialized",
        fields.get("is_checkpoint_fp8_serialized") is not False,
        "true: weights that are not stored in FP8 need no quantization_config",
    )
    unconverted = (
        *listed_modules(fields, "modules_to_not_convert"),
        *listed_modules(fields, "ignored_layers"),
    )
    return Fp8Format(
        _block_size(fields), scheme == "static", fields.get("kv_cache_scheme") is not None, unconverted
    )


def _block_size(fields: Mapping[str, Any]) -> tuple[int, int] | None:
    block = fields.get("weight_block_size")
    if block is None:
        return None
    whole = isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block)
    require(fields, "weight_block_size", whole, "two whole numbers above 0, or null")
    return block[0], block[1]


def read_float_or_power(stored: PackedTensors, part: str) -> Tensor:
    """float32: scales that are stored as floats, or as e8m0, which a byte may hold."""
    scales = stored.read(part)
    if scales.dtype in (torch.uint8, torch.float8_e8m0fnu):
        return powers(scales.view(torch.uint8), f"{stored.module}.{part}")
    return stored.read_scales(part).float()


def powers(exponents: Tensor, name: str) -> Tensor:
    """uint8 e8m0 -> float32 2 ** (exponent - 127). Raises InvalidRequest for the value that is no number."""
    if (exponents == NOT_A_POWER).any():
        raise InvalidRequest(f"{name} holds values that are not finite numbers; the checkpoint is damaged")
    ones = torch.ones_like(exponents, dtype=torch.float32)
    return torch.ldexp(ones, exponents.int() - POWER_BIAS)


def scaled_blocks(
    weight: Tensor, scales: Tensor, block: tuple[int, int], dtype: torch.dtype, module: str
) -> Tensor:
    """[out, in] in `dtype`: FP8 `weight` times float32 `scales` [ceil(out / a), ceil(in / b)] of blocks (a,
    b).

    Raises InvalidRequest for weights that are not numbers.
    """
    rows, columns = block
    out = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    for index, start in enumerate(range(0, weight.shape[0], rows)):
        part = weight[start : start + rows].float()
        spread = scales[index].repeat_interleave(columns)[: weight.shape[1]]
        out[start : start + rows] = part * spread
    if not torch.isfinite(out).all():
        raise InvalidRequest(
            f"{module}.weight holds weights that are not finite numbers; the checkpoint is damaged"
        )
    return out
