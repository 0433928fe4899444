"""The product of quantized rows and quantized weights, and how linears are put together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from shared.engine.loading.linear import DenseLinear, QuantLinear, dequantize, fuse
from shared.engine.loading.row_numbers import ROW_STEPS, quantize_rows

SHAPES = [(24, 256), (24, 200), (1, 64), (7, 20)]


def random_linear(
    out: int,
    columns: int,
    bits: int = 8,
    group: int = 64,
    *,
    bias: bool = False,
    minima: bool = False,
    seed: int = 0,
) -> QuantLinear:
    """Any codes, scales and zero points or minima: also those that no quantizer of ours makes."""
    generator = torch.Generator().manual_seed(seed)
    groups = (out, -(-columns // group))
    zeros = torch.randint(0, 2**bits, groups, generator=generator, dtype=torch.uint8)
    return QuantLinear(
        torch.randint(0, 2**bits, (out, columns), generator=generator, dtype=torch.uint8),
        (torch.rand(groups, generator=generator) * 0.01 + 0.001).half(),
        torch.zeros_like(zeros) if minima else zeros,
        bits,
        group,
        torch.randn(out, generator=generator) if bias else None,
        -torch.rand(groups, generator=generator).half() if minima else None,
    )


def rows_of(count: int, columns: int, seed: int = 1) -> Tensor:
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(seed))


def whole_numbers(values: Sequence[float], bits: int) -> list[int]:
    """One group of a row, in units: what `quantize_rows` says, one column at a time."""
    if bits == 8:
        return [round(value) for value in values]  # round is to even
    padded = [*values, *[0.0] * (-len(values) % 16)]
    numbers = [0] * len(padded)
    for column in range(len(padded)):
        if column % 16 < 8:
            sixteenth = round(padded[column + 8] / 16)
            digit = sixteenth % 16
            numbers[column] = 16 * round((padded[column] - digit) / 16) + digit
            numbers[column + 8] = 16 * sixteenth
    return numbers[: len(values)]


def reference(linear: QuantLinear, rows: Tensor) -> Tensor:
    """The definition in whole numbers and float64, one element at a time."""
    out, columns = linear.shape
    result = torch.zeros(len(rows), out, dtype=torch.float64)
    for start in range(0, columns, linear.group):
        part = slice(start, start + linear.group)
        index = start // linear.group
        for row in range(len(rows)):
            unit = rows[row, part].abs().max() / ROW_STEPS[linear.bits]
            scaled = (rows[row, part] / unit).tolist()  # in float32, as it is defined
            numbers = torch.tensor(whole_numbers(scaled, linear.bits))
            for n in range(out):
                acc = int((numbers * linear.codes[n, part].to(torch.int64)).sum())
                exact = acc - int(linear.zeros[n, index]) * int(numbers.sum())
                result[row, n] += unit.double() * linear.scales[n, index].double() * exact
                if linear.minima is not None:
                    result[row, n] += unit.double() * linear.minima[n, index].double() * int(numbers.sum())
    return result if linear.bias is None else result + linear.bias.double()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("minima", [False, True])
def test_the_product_is_its_definition_in_whole_numbers(
    bits: int, shape: tuple[int, int], bias: bool, minima: bool
) -> None:
    linear = random_linear(*shape, bits, bias=bias, minima=minima)
    rows = rows_of(5, shape[1])
    assert torch.allclose(linear(rows).double(), reference(linear, rows), rtol=1e-5, atol=1e-5)


def test_the_longest_group_of_the_largest_codes_is_rounded_once() -> None:
    linear = QuantLinear(
        torch.full((1, 512), 255, dtype=torch.uint8),
        torch.ones(1, 1).half(),
        torch.zeros(1, 1, dtype=torch.uint8),
        8,
        512,
    )
    rows = torch.full((1, 512), 127.0 * 128)
    rows[0, 0] -= 4
    exact = 255 * (512 * 127 * 128 - 4)
    assert 2**31 - exact < exact // 64
    assert linear(rows).item() == torch.tensor(exact, dtype=torch.float64).float().item()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("minima", [False, True])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(bits: int, minima: bool) -> None:
    linear = random_linear(64, 320, bits, minima=minima)
    rows = rows_of(33, 320)
    together = linear(rows)
    assert all(torch.equal(together[[row]], linear(rows[[row]])) for row in range(33))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("minima", [False, True])
def test_the_product_is_near_that_of_the_dequantized_weights(bits: int, minima: bool) -> None:
    linear = random_linear(64, 512, bits, minima=minima)
    rows = rows_of(16, 512)
    exact = rows @ dequantize(linear, torch.float32).T
    assert (linear(rows) - exact).square().mean() < 1e-6 * exact.square().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_result_has_the_dtype_of_the_rows(dtype: torch.dtype) -> None:
    rows = rows_of(3, 128).to(dtype)
    linear = random_linear(8, 128, bias=True)
    assert linear(rows).dtype == dtype
    assert torch.allclose(linear(rows).float(), linear(rows.float()), rtol=0.01, atol=0.01)


def test_no_rows_give_no_rows() -> None:
    assert random_linear(8, 128)(torch.zeros(0, 128)).shape == (0, 8)


def test_rows_of_zeros_give_the_bias() -> None:
    linear = random_linear(8, 128, bias=True)
    assert linear.bias is not None
    assert torch.equal(linear(torch.zeros(2, 128)), linear.bias.expand(2, 8))


def test_rows_of_8_bit_codes_are_rounded_to_even_per_row_and_group() -> None:
    rows = torch.zeros(2, 40)
    rows[0, :4] = torch.tensor([16256.0, 2.5, 3.5, -0.5])
    rows[0, 32:34] = torch.tensor([-32512.0, 3.0])
    rows[1, 5] = 1.0
    numbers, units = quantize_rows(rows, 8, 32)
    assert units.tolist() == [[1.0, 2.0], [torch.tensor(1 / 16256).item(), 0.0]]
    assert numbers[0, :4].tolist() == [16256.0, 2.0, 4.0, 0.0]
    assert numbers[0, 32:34].tolist() == [-16256.0, 2.0]
    assert numbers[1].tolist() == [16256.0 if column == 5 else 0.0 for column in range(40)]


def test_of_rows_of_4_bit_codes_two_columns_share_their_last_digit() -> None:
    rows = torch.zeros(1, 40)
    rows[0, [0, 1, 2]] = torch.tensor([30464.0, 100.0, -9.0])
    rows[0, [8, 9, 10]] = torch.tensor([0.0, 16.0 * 5 + 7, -16.0 * 3])
    numbers, units = quantize_rows(rows, 4, 32)
    assert units.tolist() == [[1.0, 0.0]]
    assert numbers[0, 8:11].tolist() == [0.0, 80.0, -48.0]
    assert numbers[0, :3].tolist() == [30464.0, 96.0 + 5, -16.0 + 13]  # the nearest that end in 0, 5 and -3
    assert numbers[0, 32:].tolist() == [0.0] * 8


@pytest.mark.parametrize(("bits", "steps"), [(8, 0.5), (4, 8.0)])
def test_a_row_is_off_by_no_more_than_half_a_step(bits: int, steps: float) -> None:
    rows = rows_of(64, 512)
    numbers, units = quantize_rows(rows, bits, 64)
    off = numbers - rows / units.repeat_interleave(64, 1)
    assert off.abs().max() <= steps * 1.001


@pytest.mark.parametrize("minima", [False, True])
def test_fused_parts_compute_what_each_computes(minima: bool) -> None:
    parts = [random_linear(out, 128, bias=out == 16, minima=minima, seed=out) for out in (24, 8, 16)]
    rows = rows_of(4, 128)
    fused = fuse(parts, torch.float32)
    assert isinstance(fused, QuantLinear)
    assert torch.equal(fused(rows), torch.cat([part(rows) for part in parts], dim=1))


def test_one_part_is_taken_as_it_is() -> None:
    part = random_linear(8, 64)
    assert fuse([part], torch.float32) is part


@pytest.mark.parametrize(
    "other",
    [
        DenseLinear(rows_of(8, 128), torch.ones(8)),
        random_linear(8, 128, 4),
        random_linear(8, 128, group=32),
        random_linear(8, 128, minima=True),
    ],
)
def test_parts_of_different_formats_become_dense(other: DenseLinear | QuantLinear) -> None:
    part = random_linear(24, 128)
    weight = other.weight if isinstance(other, DenseLinear) else dequantize(other, torch.float32)
    fused = fuse([part, other], torch.float32)
    assert isinstance(fused, DenseLinear)
    assert torch.equal(fused.weight, torch.cat([dequantize(part, torch.float32), weight]))
    if other.bias is None:
        assert fused.bias is None
    else:
        assert fused.bias is not None
        assert torch.equal(fused.bias, torch.cat([torch.zeros(24), other.bias]))
