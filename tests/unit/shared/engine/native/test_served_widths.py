"""Every matrix kernel at the widths and vocabularies of the most served checkpoints.

Outputs hold NaN before, rows come in every number around a border of tiles and blocks, and each row has to be
what it is alone, bit for bit.
"""

from __future__ import annotations

import ctypes
import itertools

import pytest
import torch
from torch import Tensor

from shared.engine.loading.linear import QuantLinear
from shared.engine.native.library import library
from shared.engine.native.linear import NativeLinear
from tests.support.poisoned_product import poisoned_product
from tests.support.random_linear import ROUNDING, exact_product, exact_products, exact_weight, random_linear
from tests.support.served_shapes import INPUT_WIDTHS, ROW_COUNTS, VOCABULARIES

KINDS = ("float32", "bfloat16", "int8", "int4")
NUM_OUT = 98  # three panels and a part of one
ROW_BLOCK_BYTES = 384 << 10
"""The bytes of rows that are multiplied together: `TILE_CACHE_BYTES` of the kernels."""
HEAD_WIDTH = 32
HEADS = dict.fromkeys(
    (*zip(VOCABULARIES, itertools.cycle(KINDS), strict=False), *((max(VOCABULARIES), kind) for kind in KINDS))
)
"""Each vocabulary in one form, and the largest in every one."""
ALONE = (0, 11, 12, 63, -1)
"""Rows at the beginning and the end of tiles and blocks."""
CHECKED = 65
"""The rows that double precision multiplies too, which takes longest: as many as go beyond a block."""


@pytest.fixture(scope="module")
def kernels() -> ctypes.CDLL:
    loaded = library()
    if loaded is None:
        pytest.skip("the kernels were not built, or this CPU cannot run them")
    return loaded


def row_counts(width: int) -> list[int]:
    """Return ROW_COUNTS, whose largest goes beyond two blocks of int4's rows, of 1.5 bytes a column."""
    *fewer, most = ROW_COUNTS
    return [*fewer, min(most, fewer[-1] + round(2 * ROW_BLOCK_BYTES / (1.5 * width)) + 1)]


def rows_of(width: int, count: int) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(width))


def assert_rows_are_right(kind: str, linear: NativeLinear, rows: Tensor, right: Tensor) -> None:
    """Bit for bit the same in every number of rows and threads; of the first ones `right` is the product."""
    together = poisoned_product(linear, rows)
    # Sums of thousands of terms, in float32: what an element may be off is a part of what it adds up.
    assert (together[: len(right)] - right).abs().max() <= 2e-5 * right.abs().max(), (kind, "together")
    for start in range(len(right), len(rows), len(right)):  # each as one of the first ones
        product = poisoned_product(linear, rows[start : start + len(right)])
        assert torch.equal(product, together[start : start + len(right)]), (kind, start)
    for num_rows in row_counts(rows.shape[1]):
        threads = 1 + num_rows % 2  # both kinds of sharing meet one row, few and many
        product = poisoned_product(linear, rows[:num_rows], threads)
        assert torch.equal(product, together[:num_rows]), (kind, num_rows, threads)
    for row in (row % len(rows) for row in ALONE):
        assert torch.equal(poisoned_product(linear, rows[row : row + 1]), together[row : row + 1]), (
            kind,
            row,
        )


@pytest.mark.thorough(
    but="576 | 768 | 640 | 896 | 1024 | 1152 | 1536 | 2048 | 2304 | 2880 | 2560 | 3072 | 3584 | 4096 | "
    "5632 | 8192 | 8960 | 11008 | 14336 | 28672"
)
@pytest.mark.parametrize("width", INPUT_WIDTHS)
def test_invariant_5_rows_of_every_served_width_are_right(kernels: ctypes.CDLL, width: int) -> None:
    rows = rows_of(width, row_counts(width)[-1])
    for kinds in ROUNDING:
        linears = [random_linear(kind, NUM_OUT, width) for kind in kinds]
        products = exact_products(linears, rows[:CHECKED])
        for kind, linear, right in zip(kinds, linears, products, strict=True):
            assert_rows_are_right(kind, NativeLinear.pack(kernels, linear), rows, right)


@pytest.mark.thorough(
    but="32000-float32 | 32064-bfloat16 | 49159-int4 | 49152-int8 | 128256-int4 | 151936-int8 | "
    "131072-float32 | 201088-bfloat16 | 262208-int8"
)
@pytest.mark.parametrize(("vocab", "kind"), HEADS)
def test_every_served_vocabulary_is_right(kernels: ctypes.CDLL, vocab: int, kind: str) -> None:
    linear = random_linear(kind, vocab, HEAD_WIDTH, bias=False)
    packed = NativeLinear.pack(kernels, linear)
    rows = rows_of(HEAD_WIDTH, 13)
    right = exact_product(linear, rows)
    together = poisoned_product(packed, rows, threads=2)
    assert (together - right).abs().max() <= 2e-5 * right.abs().max()
    assert torch.equal(poisoned_product(packed, rows[12:]), together[12:])


@pytest.mark.parametrize("kind", ["int8", "int4 with minima"])
def test_rounding_rows_costs_little_at_a_served_width(kind: str) -> None:
    """The oracle rounds rows as kernels do; of rows as they are the product is near, not the same."""
    linear = random_linear(kind, NUM_OUT, 8192, bias=False)
    assert isinstance(linear, QuantLinear)
    rows = rows_of(8192, 3)
    unrounded = (rows.double() @ exact_weight(linear).T).float()
    difference = (exact_product(linear, rows) - unrounded).abs().max() / unrounded.abs().max()
    assert 0 < difference < 0.001
