"""Group-wise quantization of dense weights at load.

int8: symmetric around code 128, scale = amax / 127 of the group.

int4: unsigned codes with a zero point in 0..15, chosen per group to minimise the squared error. For each of
eight clippings of the group's range (whole to 72 %) the codes c = round(w / scale), clipped around the zero
point, are made; the best scale for given codes is sum(w c) / sum(c c), which leaves the error
sum(w w) - sum(w c) ** 2 / sum(c c), so clippings compare without a pass over the errors. The best clipping's
scale is rounded to float16 and the codes are made again with what it then is. On Gaussian weights in groups
of 64 that leaves 0.76 % of the squared norm, the plain range of minimum to maximum 0.83 %, and a search of 64
lower and upper clippings 0.75 %.

Scales are float16: below 2 ** -24 they are taken as that, above 65504 the weights are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shared.engine.loading.linear import GROUP_MULTIPLE, MAX_GROUP, DenseLinear, QuantLinear
from shared.engine.loading.torch_threads import on_one_thread
from shared.errors import InvalidRequest

DEFAULT_GROUPS = {8: 128, 4: 64}
CLIPPINGS = tuple(1 - 0.04 * step for step in range(8))
MIN_SCALE = 2.0**-24  # the least float16 above zero
CHUNK_WEIGHTS = 1 << 15  # the search passes about forty times over a chunk: it stays in the cache
_BITS = {"int8": 8, "int4": 4}


@dataclass(frozen=True, slots=True)
class QuantFormat:
    bits: int  # 8 or 4
    group: int  # weights of one row that share a scale


def policy(quantization: str, group: int, part: Literal["layer", "head"]) -> QuantFormat | None:
    """Return how the linears of one part of a model are stored; None: dense. `group` 0: the default of the
    format.

    All linears of the layers, experts included, take the format asked for. The head stays at int8 under int4:
    it decides between tokens directly and costs the most there. Embeddings, norms and routers stay dense: a
    router's near-ties choose experts, and its bytes do not count. Raises InvalidRequest.
    """
    if quantization in ("none", "dense"):
        return None
    if quantization not in _BITS:
        raise InvalidRequest(f"quantization {quantization!r} is not supported; use none, dense, int8 or int4")
    bits = _BITS[quantization]
    chosen = group or DEFAULT_GROUPS[bits]
    check_group(chosen)
    return QuantFormat(8, DEFAULT_GROUPS[8]) if part == "head" and bits == 4 else QuantFormat(bits, chosen)


def check_group(group: int) -> None:
    if not 0 < group <= MAX_GROUP or group % GROUP_MULTIPLE:
        raise InvalidRequest(
            f"quantization group {group} is not a multiple of {GROUP_MULTIPLE} from {GROUP_MULTIPLE} to "
            f"{MAX_GROUP}; use {DEFAULT_GROUPS[8]} or {DEFAULT_GROUPS[4]}"
        )


@torch.inference_mode()
def quantize(linear: DenseLinear, bits: int, group: int, name: str = "weight") -> QuantLinear:
    """`linear` with codes of `bits` (8 or 4) and a scale per `group` columns; the bias stays as it is.

    Raises InvalidRequest, naming the tensor `name`, for weights that are not finite or too large for float16
    scales, and for a group that is not a multiple of 32 up to 512.
    """
    check_group(group)
    if bits not in DEFAULT_GROUPS:
        raise InvalidRequest(f"quantization to {bits} bits is not supported; use 8 or 4")
    num_rows, width = linear.shape
    num_groups = -(-width // group)
    device = linear.weight.device
    codes = torch.empty((num_rows, width), dtype=torch.uint8, device=device)
    scales = torch.empty((num_rows, num_groups), dtype=torch.float16, device=device)
    zeros = torch.empty((num_rows, num_groups), dtype=torch.uint8, device=device)
    fit = _fit_int8 if bits == 8 else _fit_int4
    step = max(1, CHUNK_WEIGHTS // width)
    with on_one_thread():
        for start in range(0, num_rows, step):
            rows = slice(start, start + step)
            part = linear.weight[rows]
            # Zeros added to the last group change neither its range nor its sums.
            chunk = torch.zeros((len(part), num_groups * group), device=device)
            chunk[:, :width] = part
            chunk_codes, chunk_scales, chunk_zeros = fit(chunk.view(-1, group), name)
            codes[rows] = chunk_codes.view(-1, num_groups * group)[:, :width]
            scales[rows] = chunk_scales.view(-1, num_groups)
            zeros[rows] = chunk_zeros.view(-1, num_groups)
    return QuantLinear(codes, scales, zeros, bits, group, linear.bias)


def _fit_int8(weights: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """[n, group] -> codes uint8 [n, group], scales float16 [n], zeros uint8 [n]"""
    low, high = weights.amin(1), weights.amax(1)
    scales = _half_scales(torch.maximum(-low, high) / 127, name)
    codes = (weights / scales.float()[:, None]).round_().clamp_(-127, 127).add_(128)
    return (
        codes.to(torch.uint8),
        scales,
        torch.full(scales.shape, 128, dtype=torch.uint8, device=codes.device),
    )


def _fit_int4(weights: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """[n, group] -> codes uint8 [n, group], scales float16 [n], zeros uint8 [n]"""
    low, high = (
        weights.amin(1).clamp_max(0),
        weights.amax(1).clamp_min(0),
    )  # the zero point is a code: zero is within the range
    _check_finite(high - low, name)
    zeros = (-low / _steps(high - low)).round_()  # clipping both ends alike leaves it where it is
    best_gains = torch.full_like(low, -1.0)
    best_scales = torch.zeros_like(low)
    for clipping in CLIPPINGS:
        distances = _distances(weights, _steps((high - low) * clipping), zeros)
        along = torch.linalg.vecdot(weights, distances)
        norms = torch.linalg.vecdot(distances, distances).clamp_min_(1)  # 0 only where all codes are zero
        gains = along * along / norms
        better = gains > best_gains
        best_gains = torch.where(better, gains, best_gains)
        best_scales = torch.where(better, along / norms, best_scales)
    scales = _half_scales(best_scales, name)
    codes = _distances(weights, scales.float(), zeros).add_(zeros[:, None])
    return codes.to(torch.uint8), scales, zeros.to(torch.uint8)


def _steps(ranges: Tensor) -> Tensor:
    return (ranges / 15).clamp_min_(MIN_SCALE)


def _distances(weights: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """[n, group]: whole steps from the zero point to the nearest of the 16 codes."""
    codes = torch.addcmul(zeros[:, None], weights, 1 / scales[:, None])
    return codes.round_().clamp_(0, 15).sub_(zeros[:, None])


def _half_scales(scales: Tensor, name: str) -> Tensor:
    _check_finite(scales, name)
    half = scales.clamp_min(MIN_SCALE).half()
    if not torch.isfinite(half).all():
        raise InvalidRequest(
            f"{name} has weights too large for float16 scales; load the model without quantization"
        )
    return half


def _check_finite(values: Tensor, name: str) -> None:
    if not torch.isfinite(values).all():
        raise InvalidRequest(f"{name} holds weights that are not finite numbers; the checkpoint is damaged")
