"""Every type of block against the weights that the `gguf` package finds in it."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.engine.loading.gguf.blocks import BLOCK_TYPES, in_one_format, read_blocks
from shared.engine.loading.linear import CodedLinear, DenseLinear, dequantize, fuse, in_groups
from shared.engine.loading.superblocks import SuperblockLinear
from shared.errors import InvalidRequest

HALVES = {  # where a block's float16 numbers begin
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}
SCALES_OF_SCALES = ["Q2_K", "Q3_K", "IQ4_XS"]
SUPERBLOCKS = ["Q4_K", "Q5_K", "Q6_K"]
STORED_SCALES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"]
EXPONENTS = range(104, 144)
"""The exponents of MXFP4's blocks: 2 ** -24 to 2 ** 15, which float16 holds."""
USUAL_EXPONENTS = range(110, 134)
"""The exponents with which it holds 128 times that, too."""
ROWS = 6


def stored_rows(type_name: str, seed: int, halves: NDArray[np.float16] | None = None) -> NDArray[np.uint8]:
    """[ROWS, bytes of 512 weights]: any bits as codes, and scales of the size that weights have."""
    random = np.random.default_rng(seed)
    kind = BLOCK_TYPES[type_name]
    blocks = random.integers(0, 256, (ROWS * 512 // kind.num_weights, kind.num_bytes), dtype=np.uint8)
    for place in HALVES[type_name]:
        drawn = random.normal(0, 0.01, len(blocks)).astype(np.float16)
        if halves is not None:
            drawn = random.choice(halves, len(blocks))
        blocks[:, place : place + 2] = drawn[:, None].view(np.uint8)
    if type_name == "MXFP4":
        blocks[:, 0] = random.choice(USUAL_EXPONENTS if halves is None else EXPONENTS, len(blocks))
    return blocks.reshape(ROWS, -1)


def read(type_name: str, stored: NDArray[np.uint8]) -> CodedLinear:
    return read_blocks(torch.from_numpy(stored), type_name, "blk.0.ffn_down.weight")


def expected(type_name: str, stored: NDArray[np.uint8]) -> Tensor:
    kind = gguf.GGMLQuantizationType[type_name]
    return torch.from_numpy(gguf.quants.dequantize(stored, kind)).view(ROWS, 512)


def bound(read: CodedLinear, weights: Tensor) -> Tensor:
    """What rounding a scale and a least weight to float16 may change: 2 ** -11 of each, or half of the least
    number above zero, times the distance."""
    linear = in_groups(read) if isinstance(read, SuperblockLinear) else read
    groups = torch.arange(512) // linear.group
    distances = (linear.codes.float() - linear.zeros.float()[:, groups]).abs()
    least = 0.0 if linear.minima is None else linear.minima.float().abs()[:, groups]
    parts = distances * linear.scales.float().abs()[:, groups] + least
    return parts * 2.0**-11 * 1.001 + (distances + 1) * 2.0**-25 + weights.abs() * 2.0**-22


@pytest.mark.parametrize("type_name", [*STORED_SCALES, *SUPERBLOCKS])
@pytest.mark.parametrize("seed", range(3))
def test_weights_with_stored_scales_are_exactly_those_of_the_file(type_name: str, seed: int) -> None:
    stored = stored_rows(type_name, seed)
    assert torch.equal(dequantize(read(type_name, stored), torch.float32), expected(type_name, stored))


@pytest.mark.parametrize("type_name", SCALES_OF_SCALES)
@pytest.mark.parametrize("seed", range(3))
def test_weights_with_scales_of_scales_are_within_a_rounding_to_float16(type_name: str, seed: int) -> None:
    stored = stored_rows(type_name, seed)
    linear, weights = read(type_name, stored), expected(type_name, stored)
    assert ((dequantize(linear, torch.float32) - weights).abs() <= bound(linear, weights)).all()


@pytest.mark.parametrize("type_name", SUPERBLOCKS)
@pytest.mark.parametrize("seed", range(3))
def test_superblocks_in_groups_are_within_a_rounding_to_float16(type_name: str, seed: int) -> None:
    stored = stored_rows(type_name, seed)
    superblocks, weights = read(type_name, stored), expected(type_name, stored)
    assert isinstance(superblocks, SuperblockLinear)
    linear = in_groups(superblocks)
    assert ((dequantize(linear, torch.float32) - weights).abs() <= bound(linear, weights)).all()


@pytest.mark.parametrize("type_name", sorted(BLOCK_TYPES))
def test_the_extremes_of_scales_and_codes_are_read_as_well(type_name: str) -> None:
    largest = 500.0 if type_name in SCALES_OF_SCALES else 65504.0  # times 127, float16 ends
    halves = np.array([0, -0.0, 2.0**-24, -(2.0**-24), 2.0**-14, largest, -largest], dtype=np.float16)
    stored = stored_rows(type_name, 7, halves)
    linear, weights = read(type_name, stored), expected(type_name, stored)
    found = dequantize(linear, torch.float32)
    if type_name in SUPERBLOCKS:
        assert torch.equal(found, weights)
    else:
        assert ((found - weights).abs() <= bound(linear, weights)).all()


@pytest.mark.parametrize("exponent", [0, 1, 103, 144, 255])
def test_a_power_of_two_that_float16_lacks_is_nought_or_refused(exponent: int) -> None:
    stored = stored_rows("MXFP4", 1)
    stored[0, 0] = exponent
    if exponent < EXPONENTS[0]:
        assert (dequantize(read("MXFP4", stored), torch.float32)[0, :32] == 0).all()
        assert (expected("MXFP4", stored)[0, :32].abs() <= 12 * 2.0**-25).all()
        return
    with pytest.raises(InvalidRequest, match=r"blk\.0\.ffn_down\.weight.*float16"):
        read("MXFP4", stored)


@pytest.mark.parametrize("type_name", sorted(name for name, places in HALVES.items() if places))
@pytest.mark.parametrize("half", [np.nan, np.inf, -np.inf])
def test_a_scale_that_is_no_finite_number_is_refused(type_name: str, half: float) -> None:
    stored = stored_rows(type_name, 1)
    for place in HALVES[type_name]:
        damaged = stored.copy()
        damaged[-1, place : place + 2] = np.array([half], np.float16).view(np.uint8)
        with pytest.raises(InvalidRequest, match=r"blk\.0\.ffn_down\.weight.*float16"):
            read(type_name, damaged)


@pytest.mark.parametrize("type_name", SCALES_OF_SCALES)
def test_a_product_of_scales_above_float16_is_refused(type_name: str) -> None:
    stored = np.full((1, BLOCK_TYPES[type_name].num_bytes), 0x7B, dtype=np.uint8)  # 61,000 times 59 or 123
    with pytest.raises(InvalidRequest, match="float16"):
        read(type_name, stored)


@pytest.mark.parametrize("type_name", sorted(BLOCK_TYPES))
@pytest.mark.parametrize("row_bytes", [0, -1, 1])
def test_a_row_of_no_whole_blocks_is_refused(type_name: str, row_bytes: int) -> None:
    whole = BLOCK_TYPES[type_name].num_bytes
    stored = np.zeros((2, whole + row_bytes if row_bytes else 0), dtype=np.uint8)
    with pytest.raises(InvalidRequest, match=f"whole {type_name} blocks of {whole}"):
        read(type_name, stored)


@pytest.mark.parametrize("type_name", sorted(BLOCK_TYPES))
def test_a_block_is_as_long_as_gguf_says(type_name: str) -> None:
    kind = BLOCK_TYPES[type_name]
    sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]]
    assert (kind.num_weights, kind.num_bytes) == sizes


@pytest.mark.parametrize("other", sorted(BLOCK_TYPES))
@pytest.mark.parametrize("type_name", ["Q4_K", "Q6_K", "Q4_0"])
def test_parts_of_two_types_are_fused_without_changing_a_weight(type_name: str, other: str) -> None:
    parts = [read(each, stored_rows(each, seed)) for seed, each in enumerate((type_name, other))]
    fused = fuse(in_one_format(parts), torch.float32)
    kept = isinstance(fused, SuperblockLinear)
    assert not isinstance(fused, DenseLinear)
    assert kept == (type_name in SUPERBLOCKS and other in SUPERBLOCKS)
    alike = parts if kept else [in_groups(p) if isinstance(p, SuperblockLinear) else p for p in parts]
    separate = torch.cat([dequantize(part, torch.float32) for part in alike])
    assert torch.equal(dequantize(fused, torch.float32), separate)


def test_zeros_that_are_no_exact_minima_stay_zeros() -> None:
    stored = stored_rows("Q8_0", 1, np.array([600.0], dtype=np.float16))  # 128 * 600 is beyond float16
    parts = [read("Q8_0", stored), read("Q4_1", stored_rows("Q4_1", 1))]
    assert in_one_format(parts) == parts
