"""Checkpoints whose linears are stored quantized, read from an unmodified directory: one file per format.

A format says, from `quantization_config` alone, which tensors a linear has, and makes a `Linear` of them.
Codes stay codes where `QuantLinear` can hold them exactly; everything else is dequantized, with one rounding
to the model's dtype. How activations were to be rounded elsewhere is not read: our kernels round rows by
themselves, and dense linears do not round them at all.

To add one: a file with a `PackedFormat`, its line below and in `READABLE_METHODS` of `config.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shared.engine.loading.packed_checkpoints.awq import awq_format
from shared.engine.loading.packed_checkpoints.compressed_tensors import compressed_tensors_format
from shared.engine.loading.packed_checkpoints.fp8 import fp8_format
from shared.engine.loading.packed_checkpoints.gptq import gptq_format
from shared.engine.loading.packed_checkpoints.mxfp4 import mxfp4_format
from shared.engine.loading.packed_checkpoints.packed_format import PackedFormat, PackedTensors, TensorSpec
from shared.errors import InvalidRequest

__all__ = ["PackedFormat", "PackedTensors", "TensorSpec", "packed_format"]

_FORMATS: dict[str, Callable[[Mapping[str, Any]], PackedFormat]] = {
    "gptq": gptq_format,
    "awq": awq_format,
    "compressed-tensors": compressed_tensors_format,
    "fp8": fp8_format,
    "mxfp4": mxfp4_format,
}


def packed_format(fields: Mapping[str, Any]) -> PackedFormat:
    """`quantization_config` of config.json. Raises InvalidRequest, naming the field that cannot be read."""
    method = fields.get("quant_method")
    if not isinstance(method, str) or method not in _FORMATS:
        raise InvalidRequest(
            f"quantization_config: quant_method {method!r} is not supported; use {', '.join(_FORMATS)} or a "
            "plain checkpoint"
        )
    return _FORMATS[method](fields)
