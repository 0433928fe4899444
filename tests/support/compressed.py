"""Checkpoints as compressed-tensors writes them, by its own code, and what it reads from them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from torch import Tensor


@dataclass(frozen=True)
class Compression:
    """One scheme: the format of storage and the arguments of weights."""

    format: str
    weights: dict[str, Any]
    keeps_codes: bool = True  # whether the engine holds the codes, exactly
    scale_dtype: torch.dtype = torch.float32
    more: dict[str, Any] = field(default_factory=dict)  # other fields of the scheme

    def scheme(self, *targets: str) -> QuantizationScheme:
        return QuantizationScheme(
            targets=list(targets), weights=QuantizationArgs(**self.weights), **self.more
        )

    def compress(self, module: str, weight: Tensor) -> dict[str, Tensor]:
        scheme = self.scheme("Linear")
        scale, zero = _range(weight, scheme.weights)
        state = {"weight": weight, "weight_scale": scale.to(self.scale_dtype)}
        state |= {} if scheme.weights.symmetric else {"weight_zero_point": zero}
        stored = self._compressor().compress(state, scheme)
        return {f"{module}.{part}": tensor.contiguous() for part, tensor in stored.items()}

    def decompress(self, module: str, stored: dict[str, Tensor]) -> Tensor:
        """[out, in]: what compressed-tensors itself makes of it, in float32."""
        parts = {name.removeprefix(f"{module}."): tensor for name, tensor in stored.items()}
        parts["weight_scale"] = parts["weight_scale"].float()
        weight: Tensor = self._compressor().decompress(parts, self.scheme("Linear"))["weight"]
        return weight

    def _compressor(self) -> Any:
        return BaseCompressor.get_value_from_registry(self.format)


def config_of(*groups: tuple[str, Compression], ignore: tuple[str, ...] = ("lm_head",)) -> dict[str, Any]:
    """`quantization_config` with a group per (target, compression), through JSON as in a file."""
    schemes = {f"group_{index}": each.scheme(target) for index, (target, each) in enumerate(groups)}
    formats = {each.format for _, each in groups}
    for (_, each), scheme in zip(groups, schemes.values(), strict=True):
        scheme.format = each.format if len(formats) > 1 else None
    config = QuantizationConfig(
        config_groups=schemes,
        format=formats.pop() if len(formats) == 1 else "mixed-precision",
        quantization_status="compressed",
        ignore=list(ignore),
    )
    fields: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=str))
    return fields


def _range(weight: Tensor, args: QuantizationArgs) -> tuple[Tensor, Tensor]:
    """Scales that float16 holds, and zero points, in the shape of the strategy."""
    rows, columns = weight.shape
    if args.strategy == "group":
        parts = weight.view(rows, -1, args.group_size)
        low, high = parts.amin(-1), parts.amax(-1)
    elif args.strategy == "block":
        tall, wide = args.block_structure
        padded = torch.zeros(-(-rows // tall) * tall, columns)
        padded[:rows] = weight
        blocks = padded.view(-1, tall, columns // wide, wide)
        low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
    elif args.strategy == "channel":
        low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    else:
        low, high = weight.amin().view(1), weight.amax().view(1)
    low, high = low.clamp_max(0), high.clamp_min(0)
    top = 448 if args.type == "float" else 2 ** (args.num_bits - 1) - 1
    if args.symmetric:
        return (torch.maximum(-low, high) / top).half().float(), torch.zeros_like(low)
    scale = ((high - low) / (2**args.num_bits - 1)).half().float()
    zero = (-low / scale).round().clamp(0, 2**args.num_bits - 1) - 2 ** (args.num_bits - 1)
    return scale, zero.to(torch.int8)
