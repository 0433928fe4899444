"""Products on the matrix unit: sums of bf16 in the order that is stated, those of codes as on vectors."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from shared.engine.loading.linear import QuantLinear
from shared.engine.native.cpu_features import KERNEL_FEATURES, MATRIX_UNIT_FEATURES, VARIABLE, usable_features
from shared.engine.native.library import has_matrix_unit, library
from shared.engine.native.linear import NativeLinear
from tests.support.poisoned_product import poisoned_product
from tests.support.random_linear import QUANTIZED, exact_product, random_linear, rows_of_any_size

STEP_COLUMNS = 32
WIDTHS = [2, 30, 32, 34, 64, 576, 1000]
ROWS = [1, 2, 15, 16, 17, 31, 32, 33, 48, 65]


@pytest.fixture
def kernels() -> Iterator[ctypes.CDLL]:
    loaded = library()
    if loaded is None or not has_matrix_unit():
        pytest.skip("this CPU has no matrix unit")
    yield loaded
    loaded.penstock_use_matrix_unit(True)


def stated_product(rows: Tensor, weight: Tensor) -> Tensor:
    """Return float32 [T, out] of bf16 [T, in] and [out, in], in the order that matrix_unit.h states.

    A product of two bf16 is exact in fp32, so that a fused multiply-add is an addition.
    """
    products = rows.float()[:, None] * weight.float()
    products = torch.nn.functional.pad(products, (0, -products.shape[-1] % STEP_COLUMNS))
    total = torch.zeros(products.shape[:2])
    for start in range(0, products.shape[-1], STEP_COLUMNS):
        step = products[..., start : start + STEP_COLUMNS]
        even, odd = torch.zeros_like(total), torch.zeros_like(total)
        for column in range(0, STEP_COLUMNS, 2):
            even += step[..., column]
            odd += step[..., column + 1]
        total += even + odd
    return total


@pytest.mark.parametrize("width", WIDTHS)
def test_sums_of_bf16_have_the_order_that_is_stated(kernels: ctypes.CDLL, width: int) -> None:
    linear = random_linear("bfloat16", 40, width, bias=False)
    rows = torch.randn(33, width, generator=torch.Generator().manual_seed(width))
    product = NativeLinear.pack(kernels, linear)(rows)
    assert torch.equal(product, stated_product(rows.bfloat16(), linear.weight))  # type: ignore[union-attr]  # dense


@pytest.mark.parametrize("num_rows", ROWS)
def test_a_row_of_bf16_is_the_same_among_others(kernels: ctypes.CDLL, num_rows: int) -> None:
    packed = NativeLinear.pack(kernels, random_linear("bfloat16", 97, 1000))
    rows = torch.randn(num_rows, 1000, generator=torch.Generator().manual_seed(num_rows))
    alone = torch.cat([packed(row[None]) for row in rows])
    assert torch.equal(packed(rows, threads=2), alone)


def test_rows_of_bf16_in_several_blocks_are_what_they_are_alone(kernels: ctypes.CDLL) -> None:
    """Rows have 8 kB each, so that 96 are a block; the last one has a tile of a few."""
    packed = NativeLinear.pack(kernels, random_linear("bfloat16", 97, 4096))
    rows = torch.randn(193, 4096, generator=torch.Generator().manual_seed(7))
    for threads in (1, 2):
        together = poisoned_product(packed, rows, threads)
        for row in (0, 31, 32, 95, 96, 191, 192):
            assert torch.equal(poisoned_product(packed, rows[row : row + 1])[0], together[row]), (
                threads,
                row,
            )


@pytest.mark.parametrize("group", [64, 96, 128, 512])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_codes_are_multiplied_to_the_bits_that_vectors_make(
    kernels: ctypes.CDLL, kind: str, group: int
) -> None:
    linear = random_linear(kind, 97, 1000, group=group)
    packed = NativeLinear.pack(kernels, linear)
    for num_rows in (9, 16, 17, 65):
        rows = torch.randn(num_rows, 1000, generator=torch.Generator().manual_seed(num_rows))
        kernels.penstock_use_matrix_unit(False)
        by_vectors = packed(rows)
        kernels.penstock_use_matrix_unit(True)
        assert torch.equal(packed(rows), by_vectors)
        torch.testing.assert_close(by_vectors, exact_product(linear, rows), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("num_rows", [47, 48, 61, 240, 241, 289])
@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("kind", ["int4", "int4 with minima"])
def test_many_rows_meet_nibbles_in_small_groups_with_the_bits_of_a_row_alone(
    kernels: ctypes.CDLL, kind: str, group: int, num_rows: int
) -> None:
    """At the borders of tiles and blocks, at a width of several chunks and a part of a group."""
    packed = NativeLinear.pack(kernels, random_linear(kind, 97, 1000, group=group))
    rows = torch.randn(num_rows, 1000, generator=torch.Generator().manual_seed(num_rows))
    rows[:, ::32] *= 30  # outliers, as hidden states have them
    together = poisoned_product(packed, rows, threads=2)
    kernels.penstock_use_matrix_unit(False)
    assert torch.equal(packed(rows), together)
    for row in (0, 11, 12, num_rows - 1):
        assert torch.equal(packed(rows[row : row + 1]), together[row : row + 1])


@pytest.mark.parametrize("group", [16, 32])
def test_many_rows_of_any_size_meet_nibbles_with_the_bits_that_vectors_make(
    kernels: ctypes.CDLL, group: int
) -> None:
    packed = NativeLinear.pack(kernels, random_linear("int4", 33, 100, group=group))
    rows = rows_of_any_size(60, 100)
    together = poisoned_product(packed, rows)
    kernels.penstock_use_matrix_unit(False)
    torch.testing.assert_close(poisoned_product(packed, rows), together, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("minima", [False, True])
def test_the_largest_sums_of_nibbles_are_exact(kernels: ctypes.CDLL, minima: bool) -> None:
    """All codes and all numbers of a group are as large as they can be, but for one number."""
    codes = torch.full((40, 64), 15, dtype=torch.uint8)
    zeros, halves = torch.zeros(40, 2, dtype=torch.uint8), torch.full((40, 2), 0.5).half()
    linear = QuantLinear(codes, torch.ones(40, 2).half(), zeros, 4, 32, None, halves if minima else None)
    rows = torch.full((50, 64), 119.0 * 256)  # as many units
    rows[:, 1] = torch.arange(50) * 16 + 1
    packed = NativeLinear.pack(kernels, linear)
    on_unit = packed(rows)
    kernels.penstock_use_matrix_unit(False)
    assert torch.equal(on_unit, packed(rows))
    exact = exact_product(linear, rows)
    torch.testing.assert_close(on_unit, exact, rtol=1e-6, atol=0)
    assert len(set(on_unit[:, 0].tolist())) > 40


def test_among_many_rows_one_that_holds_no_number_is_alone(kernels: ctypes.CDLL) -> None:
    packed = NativeLinear.pack(kernels, random_linear("int4", 33, 257))
    rows = torch.ones(60, 257)
    rows[[7, 50], [0, 256]] = torch.nan
    numbers = packed(rows).isfinite()
    assert not numbers[[7, 50]].any()
    assert numbers.sum() == 58 * 33


def test_coarse_rows_are_multiplied_to_the_bits_that_vectors_make(kernels: ctypes.CDLL) -> None:
    packed = NativeLinear.pack(kernels, random_linear("int8", 97, 1000, group=128), coarse_rows=True)
    rows = torch.randn(33, 1000, generator=torch.Generator().manual_seed(1))
    kernels.penstock_use_matrix_unit(False)
    by_vectors = packed(rows)
    kernels.penstock_use_matrix_unit(True)
    assert torch.equal(packed(rows), by_vectors)


def test_it_is_left_alone_where_it_is_not_listed(
    kernels: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, ",".join(KERNEL_FEATURES))
    assert usable_features().isdisjoint(MATRIX_UNIT_FEATURES)
    library.cache_clear()
    try:
        assert not has_matrix_unit()
    finally:
        monkeypatch.delenv(VARIABLE)
        library.cache_clear()
    assert has_matrix_unit()
