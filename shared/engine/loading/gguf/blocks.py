"""GGML's blocks of quantized weights (ggml-common.h of llama.cpp) as codes, scales and zeros of our own.

Q4_K, Q5_K and Q6_K stay superblocks with all their numbers (`super_blocks.py`). All others:

| type | block | codes | in groups of | W = |
|---|---|---|---|---|
| Q4_0, Q5_0, Q8_0 | 32 weights | 4, 5, 8 bits | 32 | d (code - 8, 16, 128) |
| Q4_1, Q5_1 | 32 | 4, 5 bits | 32 | d code + m |
| Q2_K | 256 | 2 bits | 16 | (d s) code - (d' s'), s and s' of 4 bits |
| Q3_K | 256 | 3 bits | 16 | (d s) (code - 4), s of 6 bits |
| IQ4_NL | 32 | 4 bits | 32 | d level(code), 16 levels from -127 to 113 |
| IQ4_XS | 256 | 4 bits | 32 | (d s) level(code), s of 6 bits |
| MXFP4 | 32 | 4 bits | 32 | 2 ** (e - 128) twice the e2m1 number, e of 8 bits |

Codes of 2 and 3 bits are held in 4, those of 5 in 8, of which the kernels keep as few as hold all of a
matrix. Levels and e2m1 numbers are held as what they stand for, in 8 bits. The float16 numbers of a block are
taken as they are, so the weights of Q4_0 to Q8_0 and IQ4_NL are exactly those of the file, and those of MXFP4
where their power of two is one of float16's, from 2 ** -24 on (below it they are nought). A product d s of
the others is rounded to float16: a scale or a least weight is off by 2 ** -11 of itself at most, where
bfloat16 would round a weight by 2 ** -9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shared.engine.loading.gguf.bit_fields import bit_planes, fifth_bits, halves, nibbles, pairs_of_bits
from shared.engine.loading.gguf.super_blocks import read_superblocks
from shared.engine.loading.linear import CodedLinear, QuantLinear, in_groups
from shared.engine.loading.superblocks import SuperblockLinear
from shared.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class _Unpacked:
    """n blocks, in order."""

    codes: Tensor  # uint8 [n, weights of a block]
    scales: Tensor  # float16 [n, groups of a block]
    zero: int = 0
    minima: Tensor | None = None  # float16 [n, groups of a block]


@dataclass(frozen=True, slots=True)
class BlockType:
    """The way in which weights of one row lie together."""

    num_weights: int
    num_bytes: int
    bits: int = 0  # of the codes that it becomes: 8 or 4; of superblocks, and what follows, nothing
    group: int = 0
    unpack: Callable[[Tensor], _Unpacked] | None = None  # uint8 [n, num_bytes]


def read_blocks(stored: Tensor, type_name: str, name: str) -> CodedLinear:
    """The matrix of uint8 [out, bytes of a row], stored in GGML's type `type_name`, one of BLOCK_TYPES.

    Raises InvalidRequest, naming the tensor `name`, for rows that are no whole blocks and for scales that
    are not finite in float16.
    """
    kind = BLOCK_TYPES[type_name]
    num_out, row_bytes = stored.shape
    if row_bytes == 0 or row_bytes % kind.num_bytes:
        raise InvalidRequest(
            f"tensor {name}: a row of {row_bytes} bytes is not made of whole {type_name} blocks of "
            f"{kind.num_bytes}; the file is damaged"
        )
    if kind.unpack is None:
        superblocks = read_superblocks(stored.reshape(-1, kind.num_bytes), type_name, num_out)
        _check_finite((superblocks.scales, superblocks.minima), type_name, name)
        return superblocks
    blocks = kind.unpack(stored.reshape(-1, kind.num_bytes))
    _check_finite((blocks.scales, blocks.minima), type_name, name)
    scales = blocks.scales.reshape(num_out, -1)
    return QuantLinear(
        blocks.codes.reshape(num_out, -1),
        scales,
        torch.full(scales.shape, blocks.zero, dtype=torch.uint8, device=scales.device),
        kind.bits,
        kind.group,
        minima=None if blocks.minima is None else blocks.minima.reshape(num_out, -1),
    )


def _check_finite(factors: Sequence[Tensor | None], type_name: str, name: str) -> None:
    if not all(each is None or torch.isfinite(each).all() for each in factors):
        raise InvalidRequest(
            f"tensor {name}: scales of its {type_name} blocks are no finite float16 numbers; "
            "the file is damaged"
        )


def in_one_format(stored: Sequence[CodedLinear]) -> list[CodedLinear]:
    """The same weights, to be fused: in the bits and groups that hold all parts, with minima where one has.

    Files mix types within a layer. K-quants stay what they are among themselves. Zeros of powers of two
    become minima exactly; parts where that is not so, by their zeros or float16's range, stay as they are.
    """
    if len({part.format for part in stored}) == 1:
        return list(stored)
    parts = [in_groups(part) if isinstance(part, SuperblockLinear) else part for part in stored]
    if len({part.format for part in parts}) == 1:
        return list(parts)
    bits, group = max(part.bits for part in parts), math.gcd(*(part.group for part in parts))
    with_minima = any(part.minima is not None for part in parts)
    alike = [_in_format(part, bits, group, with_minima) for part in parts]
    same = all(map(_is_exact, parts)) if with_minima else True
    return list(alike if same else parts)


def _in_format(part: QuantLinear, bits: int, group: int, with_minima: bool) -> QuantLinear:
    width = part.codes.shape[1]

    def spread(values: Tensor) -> Tensor:
        return values.repeat_interleave(part.group // group, dim=1)[:, : -(-width // group)].contiguous()

    scales, zeros = spread(part.scales), spread(part.zeros)
    if not with_minima:
        return replace(part, scales=scales, zeros=zeros, bits=bits, group=group)
    minima = _minima(part) if part.minima is None else part.minima
    return replace(
        part, scales=scales, zeros=torch.zeros_like(zeros), bits=bits, group=group, minima=spread(minima)
    )


def _is_exact(part: QuantLinear) -> bool:
    return part.minima is not None or torch.equal(
        _minima(part).float(), -part.zeros.float() * part.scales.float()
    )


def _minima(part: QuantLinear) -> Tensor:
    return (-part.zeros.float() * part.scales.float()).half()


_IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1_TWICE = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

# ---- the types ----------------------------------------------------------------------------------


def _unpack_q4_0(blocks: Tensor) -> _Unpacked:
    return _Unpacked(nibbles(blocks[:, 2:], 16), halves(blocks[:, :2]), 8)


def _unpack_q4_1(blocks: Tensor) -> _Unpacked:
    return _Unpacked(nibbles(blocks[:, 4:], 16), halves(blocks[:, :2]), minima=halves(blocks[:, 2:4]))


def _unpack_q5_0(blocks: Tensor) -> _Unpacked:
    codes = nibbles(blocks[:, 6:], 16) | fifth_bits(blocks[:, 2:6])
    return _Unpacked(codes, halves(blocks[:, :2]), 16)


def _unpack_q5_1(blocks: Tensor) -> _Unpacked:
    codes = nibbles(blocks[:, 8:], 16) | fifth_bits(blocks[:, 4:8])
    return _Unpacked(codes, halves(blocks[:, :2]), minima=halves(blocks[:, 2:4]))


def _unpack_q8_0(blocks: Tensor) -> _Unpacked:
    return _Unpacked(blocks[:, 2:] ^ 128, halves(blocks[:, :2]), 128)  # two's complement + 128


def _unpack_q2_k(blocks: Tensor) -> _Unpacked:
    steps, factors = blocks[:, :16], halves(blocks[:, 80:]).float()  # [n, 16], [n, 2]
    scales, minima = factors[:, :1] * (steps & 15).float(), -factors[:, 1:] * (steps >> 4).float()
    return _Unpacked(pairs_of_bits(blocks[:, 16:80]), scales.half(), minima=minima.half())


def _unpack_q3_k(blocks: Tensor) -> _Unpacked:
    high = bit_planes(blocks[:, :32])  # bit r of a byte belongs to run r of 32 weights
    # The nibbles of bytes 0 to 7 (of 12) are the low bits of 16 steps, all low nibbles first; the two high
    # bits of step i are in byte 8 + i % 4, from bit 2 (i // 4) on.
    low, tops = nibbles(blocks[:, 96:104], 8), blocks[:, None, 104:108]
    place = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)[:, None]
    steps = (low | (tops >> place & 3).flatten(1) << 4).float() - 32
    scales = halves(blocks[:, 108:]).float() * steps
    return _Unpacked(pairs_of_bits(blocks[:, 32:96]) | high << 2, scales.half(), 4)


def _unpack_iq4_nl(blocks: Tensor) -> _Unpacked:
    return _Unpacked(_levels(nibbles(blocks[:, 2:], 16), _IQ4_LEVELS), halves(blocks[:, :2]), 128)


def _unpack_iq4_xs(blocks: Tensor) -> _Unpacked:
    # The low four bits of step i of 8 are nibble i of four bytes, the high two bits 2 i of the 16 before.
    place = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)
    tops = (blocks[:, 2:4, None] >> place & 3).flatten(1)  # [n, 8]
    low = torch.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), dim=2).flatten(1)  # [n, 8]
    scales = halves(blocks[:, :2]).float() * ((low | tops << 4).float() - 32)
    return _Unpacked(_levels(nibbles(blocks[:, 8:], 16), _IQ4_LEVELS), scales.half(), 128)


def _unpack_mxfp4(blocks: Tensor) -> _Unpacked:
    bits = (blocks[:, :1].int() - 1).clamp(min=0) << 23  # of the float32 2 ** (e - 128)
    return _Unpacked(_levels(nibbles(blocks[:, 1:], 16), _E2M1_TWICE), bits.view(torch.float32).half(), 128)


def _levels(codes: Tensor, levels: Sequence[int]) -> Tensor:
    """uint8, of the same shape: 128 + the level that each code stands for."""
    table = torch.tensor([128 + level for level in levels], dtype=torch.uint8, device=codes.device)
    return table[codes.int()]


BLOCK_TYPES = {
    "Q4_0": BlockType(32, 18, 4, 32, _unpack_q4_0),
    "Q4_1": BlockType(32, 20, 4, 32, _unpack_q4_1),
    "Q5_0": BlockType(32, 22, 8, 32, _unpack_q5_0),
    "Q5_1": BlockType(32, 24, 8, 32, _unpack_q5_1),
    "Q8_0": BlockType(32, 34, 8, 32, _unpack_q8_0),
    "Q2_K": BlockType(256, 84, 4, 16, _unpack_q2_k),
    "Q3_K": BlockType(256, 110, 4, 16, _unpack_q3_k),
    "Q4_K": BlockType(256, 144),
    "Q5_K": BlockType(256, 176),
    "Q6_K": BlockType(256, 210),
    "IQ4_NL": BlockType(32, 18, 8, 32, _unpack_iq4_nl),
    "IQ4_XS": BlockType(256, 136, 8, 32, _unpack_iq4_xs),
    "MXFP4": BlockType(32, 17, 8, 32, _unpack_mxfp4),
}
