"""K-quants on the kernels: in the bits of the file, exact in whole numbers, each row what it is alone."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
import torch

from shared.engine.loading.superblocks import SuperblockLinear
from shared.engine.native.library import library
from shared.engine.native.linear import NativeLinear, as_packed
from tests.support.k_quants import (
    BITS_OF_FILE,
    K_QUANTS,
    exact_k_quant_product,
    random_k_quants,
)
from tests.support.poisoned_product import poisoned_product

MIXED = (("Q4_K", 64), ("Q6_K", 32), ("Q5_K", 32))
MATRICES = {**{name: ((name, 98),) for name in K_QUANTS}, "mixed": MIXED}
"""Three panels and a part of one; and the parts of a matrix of several types."""
ROW_COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 65)
WIDTHS = (256, 768, 4096, 14336)
SUPER_STEPS = 4095


@pytest.fixture(scope="module")
def kernels() -> ctypes.CDLL:
    loaded = library()
    if loaded is None:
        pytest.skip("the kernels were not built, or this CPU cannot run them")
    return loaded


def rows_of(width: int, count: int) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(width))


@pytest.mark.thorough(but="256-mixed | 768-Q5_K | 4096-Q4_K | 4096-Q6_K")
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("width", WIDTHS)
def test_invariant_5_rows_of_any_number_are_right(kernels: ctypes.CDLL, width: int, name: str) -> None:
    linear = random_k_quants(MATRICES[name], width, bias=True)
    packed, rows = NativeLinear.pack(kernels, linear), rows_of(width, ROW_COUNTS[-1])
    together = poisoned_product(packed, rows)
    right = exact_k_quant_product(linear, rows)
    # Sums of thousands of terms, in float32: what an element may be off is a part of what it adds up.
    assert (together - right).abs().max() <= 2e-6 * right.abs().max()
    assert (linear(rows) - right).abs().max() <= 2e-6 * right.abs().max()
    for num_rows in ROW_COUNTS:
        threads = 1 + num_rows % 2
        assert torch.equal(poisoned_product(packed, rows[:num_rows], threads), together[:num_rows]), num_rows
    for row in (0, 7, 8, 63, 64):
        assert torch.equal(poisoned_product(packed, rows[row : row + 1]), together[row : row + 1]), row


@pytest.mark.parametrize("name", K_QUANTS)
@pytest.mark.parametrize("num_rows", [1, 8, 40])
def test_a_product_is_near_that_of_rows_that_nobody_rounded(
    kernels: ctypes.CDLL, num_rows: int, name: str
) -> None:
    """Rows have an outlier in each superblock, as hidden states do: what else is there must not be lost."""
    linear = random_k_quants(MATRICES[name], 4096)
    rows = rows_of(4096, num_rows)
    rows[:, ::256] *= 30
    exact = rows.double() @ linear.weights(torch.float64).T
    error = (NativeLinear.pack(kernels, linear)(rows).double() - exact).square().mean().sqrt()
    assert error <= 3e-3 * exact.square().mean().sqrt()


@pytest.mark.parametrize("name", K_QUANTS)
def test_a_weight_takes_the_bits_that_it_takes_in_the_file(kernels: ctypes.CDLL, name: str) -> None:
    packed = NativeLinear.pack(kernels, random_k_quants(((name, 96),), 4096)).packed()
    unread = packed.bytes[0] - 96 * 4096 * BITS_OF_FILE[name] / 8  # what may be asked for ahead of its use
    assert 0 <= unread < 8192
    assert sum(packed.bytes) == packed.bytes[0] + 3  # and a number of bits for each panel


@pytest.mark.parametrize("num_rows", [1, 3, 9])
@pytest.mark.parametrize("name", ["Q5_K", "Q6_K"])
def test_the_largest_numbers_steps_and_codes_are_added_up_exactly(
    kernels: ctypes.CDLL, name: str, num_rows: int
) -> None:
    linear = random_k_quants(((name, 33),), 256)
    six = name == "Q6_K"
    largest = replace(
        linear,
        codes=torch.full_like(linear.codes, 0 if six else 31),
        steps=torch.full_like(linear.steps, -128 if six else 63),
        least=torch.full_like(linear.least, 0 if six else 63),
        scales=torch.ones_like(linear.scales),
        minima=torch.full_like(linear.minima, 0 if six else 1),
    )
    weight = 32 * 128 if six else 31 * 63
    rows = torch.full((num_rows, 256), float(SUPER_STEPS))
    for signs in (rows, -rows):
        halves = torch.tensor(weight * SUPER_STEPS * 128.0) * 2
        whole = halves if six else halves - float(63 * SUPER_STEPS * 256)
        expected = (whole * signs[0, 0].sign()).expand(num_rows, 33)
        assert torch.equal(NativeLinear.pack(kernels, largest)(signs), expected)


@pytest.mark.parametrize("name", K_QUANTS)
def test_rows_of_zeros_and_of_what_is_no_number_stay_what_they_are(kernels: ctypes.CDLL, name: str) -> None:
    packed = NativeLinear.pack(kernels, random_k_quants(MATRICES[name], 512))
    rows = rows_of(512, 12)
    alone = packed(rows)
    rows[3], rows[5, 7], rows[9, 300] = 0.0, torch.nan, torch.inf
    rows[11] = 1e-44 * torch.arange(512)  # whose unit is hardly a number
    product = packed(rows)
    assert (product[3] == 0).all()
    assert product[5].isnan().all()
    assert not product[9].isfinite().any()
    assert product[11].abs().max() < 1e-35
    for row in (0, 1, 2, 4, 6, 7, 8, 10):
        assert torch.equal(product[row], alone[row])


@pytest.mark.parametrize("gated", [False, True])
def test_parts_of_several_types_keep_theirs_where_panels_end_with_them(
    kernels: ctypes.CDLL, gated: bool
) -> None:
    linear = random_k_quants((("Q4_K", 64), ("Q6_K", 64)), 256)
    uneven = random_k_quants((("Q4_K", 40), ("Q6_K", 88)), 256)
    kept = as_packed(linear, gated=gated)
    assert isinstance(kept, SuperblockLinear) is not gated  # a panel has 16 gates and 16 of the other half
    assert not isinstance(as_packed(uneven, gated=gated), SuperblockLinear)
    same = random_k_quants((("Q5_K", 120),), 256)
    assert as_packed(same, gated=gated) is same
    rows = rows_of(256, 3)
    product = NativeLinear.pack(kernels, uneven)(rows)
    right = exact_k_quant_product(uneven, rows)
    assert (product - right).abs().max() <= 2e-3 * right.abs().max()  # its factors are rounded to float16


@pytest.mark.parametrize("name", K_QUANTS)
def test_a_gated_matrix_has_its_gates_beside_their_partners(kernels: ctypes.CDLL, name: str) -> None:
    linear, rows = random_k_quants(((name, 96),), 256), rows_of(256, 9)
    plain = NativeLinear.pack(kernels, linear)(rows)
    gated = NativeLinear.pack(kernels, linear, gated=True)(rows).view(9, 3, 2, 16)
    assert torch.equal(gated[:, :, 0].flatten(1), plain[:, :48])
    assert torch.equal(gated[:, :, 1].flatten(1), plain[:, 48:])


def test_parts_that_no_k_quants_have_are_refused(kernels: ctypes.CDLL) -> None:
    packed = NativeLinear.pack(kernels, random_k_quants(MIXED, 512))
    parts = packed.packed()
    assert NativeLinear.over(kernels, parts, packed) is not None
    for field, value in (("width", 500), ("group", 16), ("group", 256), ("storage", 1), ("out", 32)):
        parts = packed.packed()
        setattr(parts, field, value)
        assert NativeLinear.over(kernels, parts, packed) is None, (field, value)
    for bits in ((4, 4, 6, 6), (4, 4, 6, 7), (0, 4, 6, 5)):
        parts, panels = packed.packed(), (ctypes.c_uint8 * 4)(*bits)
        parts.parts[6] = ctypes.addressof(panels)
        assert NativeLinear.over(kernels, parts, packed) is None, bits
    parts = packed.packed()
    parts.parts[6] = None
    assert NativeLinear.over(kernels, parts, packed) is None
