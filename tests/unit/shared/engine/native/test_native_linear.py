"""The panel kernels against torch, on shapes that do not fit panels, tiles or groups."""

from __future__ import annotations

import ctypes
import gc
import mmap
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from shared.engine.loading.linear import QuantLinear
from shared.engine.native.library import library
from shared.engine.native.linear import NativeLinear
from shared.errors import InvalidRequest
from tests.support.random_linear import FORMATS, QUANTIZED, exact_product, exact_weight, random_linear

SHAPES = [(1, 1), (3, 2), (32, 64), (33, 65), (97, 130), (70, 257)]  # (out, in)
PAGE_BYTES = mmap.PAGESIZE
ONE_ZERO_GROUPS = 192
"""The most groups of a row whose sums are multiplied by a panel's one zero beforehand."""


@pytest.fixture(scope="module")
def kernels() -> ctypes.CDLL:
    loaded = library()
    if loaded is None:
        pytest.skip("the kernels were not built, or this CPU cannot run them")
    return loaded


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("num_rows", [1, 2, 4, 7, 12, 13, 40])
def test_products_equal_torch(kernels: ctypes.CDLL, kind: str, shape: tuple[int, int], num_rows: int) -> None:
    linear = random_linear(kind, *shape)
    rows = torch.randn(num_rows, shape[1], generator=torch.Generator().manual_seed(num_rows))
    torch.testing.assert_close(
        NativeLinear.pack(kernels, linear)(rows), exact_product(linear, rows), rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("group", [16, 32, 48, 64, 128])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_every_group_size_equals_torch(kernels: ctypes.CDLL, kind: str, group: int) -> None:
    linear = random_linear(kind, 40, 300, group=group)
    rows = torch.randn(9, 300, generator=torch.Generator().manual_seed(group))
    torch.testing.assert_close(NativeLinear.pack(kernels, linear)(rows), linear(rows), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("groups", [5, ONE_ZERO_GROUPS, ONE_ZERO_GROUPS + 1])
@pytest.mark.parametrize("num_rows", [3, 4, 13])
@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_one_zero_for_all_columns_gives_what_zeros_of_their_own_give(
    kernels: ctypes.CDLL, kind: str, num_rows: int, groups: int
) -> None:
    width = 16 * groups
    one = random_linear(kind, 64, width, group=16)
    assert isinstance(one, QuantLinear)
    one.zeros[:32] = 2 ** (one.bits - 1)  # the first of two panels
    mixed = random_linear(kind, 64, width, group=16)
    assert isinstance(mixed, QuantLinear)
    mixed.zeros[:32] = one.zeros[:32]
    mixed.zeros[31] += 1
    rows = torch.randn(num_rows, width, generator=torch.Generator().manual_seed(groups))
    ours, others = NativeLinear.pack(kernels, one)(rows), NativeLinear.pack(kernels, mixed)(rows)
    assert torch.equal(ours[:, :31], others[:, :31])
    assert torch.equal(ours[:, 32:], others[:, 32:])
    torch.testing.assert_close(ours, exact_product(one, rows), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("num_rows", [1, 9])
def test_the_longest_group_of_the_largest_codes_is_rounded_once(kernels: ctypes.CDLL, num_rows: int) -> None:
    codes = torch.full((1, 512), 255, dtype=torch.uint8)
    linear = QuantLinear(codes, torch.ones(1, 1).half(), torch.zeros(1, 1, dtype=torch.uint8), 8, 512)
    rows = torch.full((num_rows, 512), 127.0 * 128)
    rows[:, 0] -= 4
    exact = torch.tensor(255 * (512 * 127 * 128 - 4), dtype=torch.float64)
    assert torch.equal(NativeLinear.pack(kernels, linear)(rows), exact.float().expand(num_rows, 1))


@pytest.mark.parametrize("kind", ["int8", "int4", "int8 with minima", "int4 with minima"])
@pytest.mark.parametrize("width", [576, 8192, 14336])
@pytest.mark.parametrize("num_rows", [1, 4, 5, 12])
def test_a_product_is_near_that_of_rows_that_nobody_rounded(
    kernels: ctypes.CDLL, num_rows: int, width: int, kind: str
) -> None:
    """Rows have an outlier in each group, as hidden states do: what else is there must not be lost."""
    linear = random_linear(kind, 40, width, bias=False)
    assert isinstance(linear, QuantLinear)
    rows = torch.randn(num_rows, width, generator=torch.Generator().manual_seed(width))
    rows[:, ::32] *= 30
    exact = rows.double() @ exact_weight(linear).T
    error = (NativeLinear.pack(kernels, linear)(rows).double() - exact).square().mean().sqrt()
    assert error <= (2e-3 if kind.startswith("int4") else 2e-4) * exact.square().mean().sqrt()


@pytest.mark.parametrize("num_rows", [1, 7, 13])
def test_coarse_rows_are_rounded_to_8_bits(kernels: ctypes.CDLL, num_rows: int) -> None:
    linear = random_linear("int8", 70, 257)
    assert isinstance(linear, QuantLinear)
    rows = torch.randn(num_rows, 257, generator=torch.Generator().manual_seed(num_rows))
    grouped = torch.nn.functional.pad(rows, (0, -257 % 32)).view(num_rows, -1, 32)
    units = grouped.abs().amax(-1, keepdim=True) / 127
    rounded = ((grouped / units).round() * units).flatten(1)[:, :257]
    assert linear.bias is not None
    right = (rounded.double() @ exact_weight(linear).T + linear.bias.double()).float()
    coarse = NativeLinear.pack(kernels, linear, coarse_rows=True)
    torch.testing.assert_close(coarse(rows), right, rtol=1e-5, atol=1e-4)
    assert torch.equal(torch.cat([coarse(row[None]) for row in rows]), coarse(rows))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_row_of_zeros_gives_the_bias(kernels: ctypes.CDLL, kind: str) -> None:
    linear = random_linear(kind, 33, 65)
    assert linear.bias is not None
    assert torch.equal(NativeLinear.pack(kernels, linear)(torch.zeros(1, 65))[0], linear.bias)


@pytest.mark.parametrize("kind", FORMATS)
def test_invariant_5_a_row_is_bitwise_the_same_among_any_others(kernels: ctypes.CDLL, kind: str) -> None:
    linear = NativeLinear.pack(kernels, random_linear(kind, 70, 257))
    rows = torch.randn(40, 257, generator=torch.Generator().manual_seed(1))
    alone = torch.cat([linear(row[None]) for row in rows])
    for size in (2, 5, 8, 12, 40):
        assert torch.equal(torch.cat([linear(part) for part in torch.split(rows, size)]), alone)


@pytest.mark.parametrize("kind", FORMATS)
def test_two_threads_give_what_one_gives(kernels: ctypes.CDLL, kind: str) -> None:
    linear = NativeLinear.pack(kernels, random_linear(kind, 97, 130))
    rows = torch.randn(5, 130, generator=torch.Generator().manual_seed(2))
    assert torch.equal(linear(rows, threads=2), linear(rows, threads=1))


@pytest.mark.parametrize("threads", [2, 3, 17])
@pytest.mark.parametrize("num_rows", [1, 9])
def test_any_number_of_threads_gives_what_one_gives(
    kernels: ctypes.CDLL, num_rows: int, threads: int
) -> None:
    linear = NativeLinear.pack(kernels, random_linear("int4", 3000, 256))  # in a dozen claims
    rows = torch.randn(num_rows, 256, generator=torch.Generator().manual_seed(2))
    alone = linear(rows)
    assert all(torch.equal(linear(rows, threads=threads), alone) for _ in range(20))


def test_small_matrices_lie_one_behind_the_other(kernels: ctypes.CDLL) -> None:
    matrices = [NativeLinear.pack(kernels, random_linear("int4 with minima", 64, 256)) for _ in range(9)]
    spans = sorted(
        (address, address + num_bytes)
        for packed in (matrix.packed() for matrix in matrices)
        for address, num_bytes in zip(packed.parts, packed.bytes, strict=True)
        if address
    )
    assert all(begin % 64 == 0 for begin, _ in spans)
    gaps = [after[0] - before[1] for before, after in pairwise(spans)]
    assert min(gaps) >= 0
    assert sorted(gaps)[len(gaps) // 2] < 64  # a chunk may end between two of them


def test_memory_of_matrices_goes_back_when_none_of_them_is_left(kernels: ctypes.CDLL) -> None:
    def mapped_mb() -> float:
        return int(Path("/proc/self/statm").read_text().split()[0]) * PAGE_BYTES / 2**20

    before = mapped_mb()
    matrices = [NativeLinear.pack(kernels, random_linear("int8", 512, 8192)) for _ in range(16)]
    assert mapped_mb() > before + 60
    matrices.clear()
    gc.collect()
    assert mapped_mb() < before + 40


@pytest.mark.parametrize("place", [0, 31, 64, 256])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_row_with_what_is_no_number_gives_none(kernels: ctypes.CDLL, kind: str, place: int) -> None:
    linear = NativeLinear.pack(kernels, random_linear(kind, 33, 257))
    rows = torch.ones(2, 257)
    rows[1, place] = torch.nan
    assert linear(rows)[0].isfinite().all()
    assert linear(rows)[1].isnan().all()


@pytest.mark.parametrize("kind", QUANTIZED)
def test_what_is_laid_over_the_parts_of_a_packed_matrix_multiplies_as_it_does(
    kernels: ctypes.CDLL, kind: str
) -> None:
    packed = NativeLinear.pack(kernels, random_linear(kind, 70, 130))
    over = NativeLinear.over(kernels, packed.packed(), packed)
    assert over is not None
    rows = torch.randn(3, 130, generator=torch.Generator().manual_seed(1))
    assert torch.equal(over(rows), packed(rows))
    assert over.nbytes == packed.nbytes


@pytest.mark.parametrize("part", range(6))
@pytest.mark.parametrize("kind", QUANTIZED)
def test_a_part_of_another_length_is_refused(kernels: ctypes.CDLL, kind: str, part: int) -> None:
    packed = NativeLinear.pack(kernels, random_linear(kind, 70, 130))
    parts = packed.packed()
    parts.bytes[part] += 1
    assert NativeLinear.over(kernels, parts, packed) is None


def test_a_group_that_the_kernels_cannot_take_is_refused(kernels: ctypes.CDLL) -> None:
    with pytest.raises(InvalidRequest, match="multiple of 16"):
        NativeLinear.pack(kernels, random_linear("int4", 8, 40, group=20))
