"""Packed checkpoints, code by code as their formats are described; slow and plain on purpose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Nibble i of an AWQ word, from the low bits on, holds the column AWQ_ORDER[i] of its eight.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, slots=True)
class Codes:
    """A quantized matrix before it is packed: W[k, n] = (codes[k, n] - zeros[g, n]) * scales[g, n]."""

    codes: NDArray[np.int64]  # [in, out]
    zeros: NDArray[np.int64]  # [groups, out]
    scales: Tensor  # float16 [groups, out]
    groups: NDArray[np.int64]  # [in]: the group of each input
    bits: int

    def weight(self) -> Tensor:
        """float64 [out, in]: what the codes stand for."""
        distances = self.codes - self.zeros[self.groups]
        return (torch.from_numpy(distances).double() * self.scales.double()[self.groups]).T.contiguous()


def quantize_plainly(
    weight: Tensor, bits: int, group_size: int, *, symmetric: bool = False, order: Tensor | None = None
) -> Codes:
    """`weight` [out, in] in the range of each group; inputs fill the groups in the order `order` [in]."""
    columns = weight.T.double()  # [in, out]
    size = len(columns) if group_size == -1 else group_size
    places = torch.arange(len(columns))
    groups = torch.empty_like(places)
    groups[places if order is None else order] = places // size
    codes, zeros, scales = torch.empty_like(columns), [], []
    for group in range(int(groups.max()) + 1):
        part = columns[groups == group]
        low, high = part.amin(0).clamp_max(0), part.amax(0).clamp_min(0)
        if symmetric:
            high = torch.maximum(-low, high)
            low = -high
        scale = ((high - low) / (2**bits - 1)).half()
        zero = torch.full_like(low, 2 ** (bits - 1)) if symmetric else (-low / scale).round()
        codes[groups == group] = (part / scale + zero).round().clamp(0, 2**bits - 1)
        zeros.append(zero)
        scales.append(scale)
    return Codes(
        codes.numpy().astype(np.int64),
        torch.stack(zeros).numpy().astype(np.int64),
        torch.stack(scales),
        groups.numpy(),
        bits,
    )


def gptq_tensors(module: str, codes: Codes, version: int = 1) -> dict[str, Tensor]:
    """What AutoGPTQ stores: version 1 keeps zero - 1, version 2 the zero itself."""
    per_word = 32 // codes.bits
    num_in, num_out = codes.codes.shape
    words = np.zeros((num_in // per_word, num_out), dtype=np.uint32)
    for k in range(num_in):
        words[k // per_word] |= (codes.codes[k] << (codes.bits * (k % per_word))).astype(np.uint32)
    stored = (codes.zeros - (1 if version == 1 else 0)) % 2**codes.bits
    zero_words = np.zeros((len(stored), num_out // per_word), dtype=np.uint32)
    for n in range(num_out):
        zero_words[:, n // per_word] |= (stored[:, n] << (codes.bits * (n % per_word))).astype(np.uint32)
    return {
        f"{module}.qweight": torch.from_numpy(words.view(np.int32)),
        f"{module}.qzeros": torch.from_numpy(zero_words.view(np.int32)),
        f"{module}.scales": codes.scales.clone(),
        f"{module}.g_idx": torch.from_numpy(codes.groups.astype(np.int32)),
    }


def awq_tensors(module: str, codes: Codes) -> dict[str, Tensor]:
    """What AutoAWQ's GEMM version stores."""
    return {
        f"{module}.qweight": _awq_words(codes.codes),
        f"{module}.qzeros": _awq_words(codes.zeros),
        f"{module}.scales": codes.scales.clone(),
    }


def _awq_words(values: NDArray[np.int64]) -> Tensor:
    """[R, out] -> int32 [R, out / 8]"""
    words = np.zeros((values.shape[0], values.shape[1] // 8), dtype=np.uint32)
    for word in range(words.shape[1]):
        for nibble, column in enumerate(AWQ_ORDER):
            words[:, word] |= (values[:, 8 * word + column] << (4 * nibble)).astype(np.uint32)
    return torch.from_numpy(words.view(np.int32))


def fp8_block_tensors(module: str, weight: Tensor, block: tuple[int, int]) -> dict[str, Tensor]:
    """What DeepSeek and Qwen publish: e4m3 beside a float32 scale per block."""
    rows, columns = weight.shape
    scales = torch.empty(-(-rows // block[0]), -(-columns // block[1]))
    codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            place = (slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1]))
            scales[i, j] = weight[place].abs().max() / 448
            codes[place] = (weight[place] / scales[i, j]).to(torch.float8_e4m3fn)
    return {f"{module}.weight": codes, f"{module}.weight_scale_inv": scales}


def mxfp4_tensors(parameter: str, weight: Tensor) -> dict[str, Tensor]:
    """What gpt-oss publishes, of a `weight` [..., out, in]."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    blocks = weight.float().view(*weight.shape[:-1], -1, 32)
    exponents = (blocks.abs().amax(-1) / 6).log2().ceil()
    codes = (blocks[..., None] / torch.exp2(exponents)[..., None, None] - values).abs().argmin(-1)
    pairs = codes[..., 0::2] | codes[..., 1::2] << 4
    return {
        f"{parameter}_blocks": pairs.to(torch.uint8),
        f"{parameter}_scales": (exponents + 127).to(torch.uint8),
    }
