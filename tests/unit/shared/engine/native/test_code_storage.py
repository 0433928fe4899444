"""Codes of 8 bits lie in as few bits as hold all of a matrix: 4 for sixteen levels, 6 below 64, or 8."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from shared.engine.loading.linear import QuantLinear
from shared.engine.native.library import library
from shared.engine.native.linear import NativeLinear
from tests.support.random_linear import random_linear

BYTES, SIX_BITS, LEVELS = range(3)
OUT, WIDTH = 96, 512


@pytest.fixture(scope="module")
def kernels() -> ctypes.CDLL:
    loaded = library()
    if loaded is None:
        pytest.skip("the kernels were not built, or this CPU cannot run them")
    return loaded


def with_codes(codes: Tensor, group: int = 32) -> QuantLinear:
    linear = random_linear("int8", *codes.shape, group=group)
    assert isinstance(linear, QuantLinear)
    return replace(linear, codes=codes)


def spread(*values: int) -> Tensor:
    """uint8 [OUT, WIDTH]: these codes, each of them somewhere."""
    places = torch.arange(OUT * WIDTH).view(OUT, WIDTH) * 7919 % len(values)
    return torch.tensor(values, dtype=torch.uint8)[places]


@pytest.mark.parametrize(
    ("codes", "storage", "bits"),
    [
        (spread(*range(64)), SIX_BITS, 6),
        (spread(*range(63), 64), BYTES, 8),
        (spread(*range(240, 256)), LEVELS, 4),
        (spread(*range(17)), SIX_BITS, 6),
        (spread(*range(239, 256)), BYTES, 8),
        (spread(200), LEVELS, 4),
    ],
    ids=["below 64", "up to 64", "16 levels", "17 small ones", "17 levels", "one level"],
)
def test_codes_take_the_bits_that_they_need(
    kernels: ctypes.CDLL, codes: Tensor, storage: int, bits: int
) -> None:
    packed = NativeLinear.pack(kernels, with_codes(codes)).packed()
    unread = packed.bytes[0] - OUT * WIDTH * bits // 8  # what may be asked for ahead of its use
    assert packed.storage == storage
    assert 0 <= unread < 8192


@pytest.mark.parametrize("kind", ["int8 below 64", "int8 of levels"])
@pytest.mark.parametrize("num_rows", [1, 4, 5, 8, 9, 17, 64])
@pytest.mark.parametrize("group", [16, 32, 128, 512])
def test_products_have_the_bits_of_the_same_codes_in_bytes(
    kernels: ctypes.CDLL, kind: str, group: int, num_rows: int
) -> None:
    """One more row of the matrix has all codes, so that nothing of it lies in fewer bits."""
    linear = random_linear(kind, OUT, WIDTH, group=group)
    assert isinstance(linear, QuantLinear)
    assert linear.bias is not None
    longer = replace(
        linear,
        codes=torch.cat([linear.codes, (torch.arange(WIDTH) % 256).to(torch.uint8)[None]]),
        scales=torch.cat([linear.scales, linear.scales[:1]]),
        zeros=torch.cat([linear.zeros, linear.zeros[:1]]),
        bias=torch.cat([linear.bias, linear.bias[:1]]),
    )
    rows = torch.randn(num_rows, WIDTH, generator=torch.Generator().manual_seed(group))
    in_bytes, packed = (NativeLinear.pack(kernels, each) for each in (longer, linear))
    assert in_bytes.packed().storage == BYTES
    assert packed.packed().storage != BYTES
    assert torch.equal(packed(rows, threads=2), in_bytes(rows)[:, :OUT])


@pytest.mark.parametrize("storage", [BYTES, SIX_BITS, LEVELS, 3, -1])
@pytest.mark.parametrize("kind", ["int8", "int8 below 64", "int8 of levels", "int4", "bfloat16"])
def test_parts_that_are_said_to_lie_otherwise_are_refused(
    kernels: ctypes.CDLL, kind: str, storage: int
) -> None:
    packed = NativeLinear.pack(kernels, random_linear(kind, 70, 130))
    parts = packed.packed()
    expected = storage == parts.storage
    parts.storage = storage
    assert (NativeLinear.over(kernels, parts, packed) is not None) is expected
