"""From dense weights to codes: error bounds, odd shapes, what is refused, what is quantized at all."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from shared.engine.loading.linear import DenseLinear, QuantLinear, dequantize
from shared.engine.loading.quantize import QuantFormat, policy, quantize
from shared.errors import InvalidRequest

SHAPES = [
    (48, 256),
    (48, 200),
    (1, 128),
    (5, 20),
    (3, 129),
]  # whole groups, a short last one, one row, one group
FORMATS = [(8, 128), (8, 32), (4, 64), (4, 32)]


def gaussian(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.05


def steps(linear: QuantLinear) -> Tensor:
    """[out, in]: each weight's distance between codes."""
    return linear.scales.float().repeat_interleave(linear.group, dim=1)[:, : linear.codes.shape[1]]


def relative_error(weight: Tensor, linear: QuantLinear) -> float:
    return float((dequantize(linear, torch.float32) - weight).square().sum() / weight.square().sum())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("bits", "group"), FORMATS)
def test_codes_scales_and_zeros_have_the_shapes_that_backends_take(
    shape: tuple[int, int], bits: int, group: int
) -> None:
    quantized = quantize(DenseLinear(gaussian(*shape)), bits, group)
    groups = (shape[0], -(-shape[1] // group))
    assert quantized.shape == shape
    assert (quantized.scales.shape, quantized.zeros.shape) == (groups, groups)
    assert (quantized.codes.dtype, quantized.scales.dtype, quantized.zeros.dtype) == (
        torch.uint8,
        torch.float16,
        torch.uint8,
    )
    assert int(quantized.codes.max()) < 2**bits


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("group", [32, 128])
def test_int8_is_symmetric_and_within_half_a_step_of_every_weight(shape: tuple[int, int], group: int) -> None:
    weight = gaussian(*shape)
    quantized = quantize(DenseLinear(weight), 8, group)
    assert (quantized.zeros == 128).all()
    errors = (dequantize(quantized, torch.float32) - weight).abs()
    assert (errors <= 0.5001 * steps(quantized)).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("group", [32, 64])
def test_int4_gives_every_weight_the_nearest_of_its_group_s_sixteen_values(
    shape: tuple[int, int], group: int
) -> None:
    weight = gaussian(*shape)
    quantized = quantize(DenseLinear(weight), 4, group)
    zeros = quantized.zeros.float().repeat_interleave(group, dim=1)[:, : shape[1], None]
    values = (torch.arange(16) - zeros) * steps(quantized)[..., None]  # [out, in, 16]
    nearest = (values - weight[..., None]).abs().amin(-1)
    errors = (dequantize(quantized, torch.float32) - weight).abs()
    assert torch.allclose(errors, nearest, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_int4_s_search_beats_the_plain_range_in_every_row(group: int) -> None:
    weight = gaussian(64, 512)
    grouped = weight.view(64, -1, group)
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    scale = (high - low) / 15
    zero = (-low / scale).round()
    plain = ((grouped / scale + zero).round().clamp(0, 15) - zero) * scale
    searched = dequantize(quantize(DenseLinear(weight), 4, group), torch.float32)
    assert ((searched - weight).square().sum(1) < (plain.flatten(1) - weight).square().sum(1)).all()


def test_int4_takes_the_asymmetry_of_a_group_into_account() -> None:
    weight = gaussian(16, 256).abs() + 0.01
    assert relative_error(weight, quantize(DenseLinear(weight), 4, 64)) < 0.003


@pytest.mark.parametrize(("bits", "bound"), [(8, 1e-4), (4, 0.011)])
def test_the_error_of_gaussian_weights_is_what_the_format_allows(bits: int, bound: float) -> None:
    weight = gaussian(256, 1024)
    assert relative_error(weight, quantize(DenseLinear(weight), bits, 128)) < bound


@pytest.mark.parametrize("bits", [8, 4])
def test_rows_of_zeros_stay_zeros(bits: int) -> None:
    weight = gaussian(4, 256)
    weight[1] = 0
    weight[2, :64] = 0
    restored = dequantize(quantize(DenseLinear(weight), bits, 64), torch.float32)
    assert not restored[1].any()
    assert not restored[2, :64].any()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("size", [1e-9, 1e-7, 5e4])
def test_tiny_and_huge_weights_stay_finite_and_close_on_the_scale_of_float16(bits: int, size: float) -> None:
    weight = gaussian(4, 128) * size / 0.05
    restored = dequantize(quantize(DenseLinear(weight), bits, 64), torch.float32)
    assert torch.isfinite(restored).all()
    assert ((restored - weight).abs() <= 0.15 * weight.abs().max() + 2.0**-24).all()


@pytest.mark.parametrize(("bits", "group"), FORMATS)
def test_what_came_from_codes_is_quantized_to_itself(bits: int, group: int) -> None:
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 2**bits, (12, 256), generator=generator, dtype=torch.uint8)
    zeros = torch.full((12, 256 // group), 2 ** (bits - 1), dtype=torch.uint8)
    codes[:, ::group] = 2**bits - 1  # every group reaches both ends, so that its range is known
    codes[:, 1::group] = 1 if bits == 8 else 0
    codes.clamp_(min=1 if bits == 8 else 0)
    scales = torch.rand(12, 256 // group, generator=generator).half() * 0.01 + 0.001
    weight = dequantize(QuantLinear(codes, scales, zeros, bits, group), torch.float32)
    again = quantize(DenseLinear(weight), bits, group)
    assert torch.equal(dequantize(again, torch.float32), weight)


@pytest.mark.parametrize("bits", [8, 4])
def test_bfloat16_weights_are_quantized_as_their_exact_values(bits: int) -> None:
    weight = gaussian(8, 256).bfloat16()
    from_bfloat16 = quantize(DenseLinear(weight), bits, 64)
    from_float32 = quantize(DenseLinear(weight.float()), bits, 64)
    assert torch.equal(from_bfloat16.codes, from_float32.codes)
    assert torch.equal(from_bfloat16.scales, from_float32.scales)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_matrix_of_many_chunks_is_quantized_like_its_rows(bits: int) -> None:
    weight = gaussian(300, 1000)
    whole = quantize(DenseLinear(weight), bits, 64)
    rows = [quantize(DenseLinear(weight[[row]]), bits, 64) for row in (0, 31, 32, 33, 299)]
    assert torch.equal(whole.codes[[0, 31, 32, 33, 299]], torch.cat([row.codes for row in rows]))


def test_the_bias_is_kept() -> None:
    bias = torch.arange(8.0)
    assert quantize(DenseLinear(gaussian(8, 64), bias), 8, 32).bias is bias


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_weights_that_are_not_finite_are_refused_by_the_tensor_s_name(bits: int, value: float) -> None:
    weight = gaussian(4, 128)
    weight[3, 100] = value
    with pytest.raises(InvalidRequest, match=r"^model\.layers\.0\.mlp holds weights that are not finite"):
        quantize(DenseLinear(weight), bits, 64, "model.layers.0.mlp")


@pytest.mark.parametrize("bits", [8, 4])
def test_weights_beyond_float16_scales_are_refused_by_the_tensor_s_name(bits: int) -> None:
    with pytest.raises(InvalidRequest, match=r"^head has weights too large for float16 scales"):
        quantize(DenseLinear(torch.full((2, 64), 1e8)), bits, 64, "head")


@pytest.mark.parametrize("group", [0, -32, 31, 48, 544])
def test_a_group_that_backends_cannot_take_is_refused(group: int) -> None:
    with pytest.raises(InvalidRequest, match=f"group {group} is not a multiple of 32 from 32 to 512"):
        quantize(DenseLinear(gaussian(2, 64)), 8, group)


def test_other_bits_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="3 bits is not supported; use 8 or 4"):
        quantize(DenseLinear(gaussian(2, 64)), 3, 64)


@pytest.mark.parametrize(
    ("quantization", "group", "layers", "head"),
    [
        ("none", 0, None, None),
        ("int8", 0, QuantFormat(8, 128), QuantFormat(8, 128)),
        ("int8", 64, QuantFormat(8, 64), QuantFormat(8, 64)),
        ("int4", 0, QuantFormat(4, 64), QuantFormat(8, 128)),
        ("int4", 32, QuantFormat(4, 32), QuantFormat(8, 128)),
    ],
)
def test_the_policy_names_the_format_of_layers_and_head(
    quantization: str, group: int, layers: QuantFormat | None, head: QuantFormat | None
) -> None:
    assert policy(quantization, group, "layer") == layers
    assert policy(quantization, group, "head") == head


def test_the_policy_refuses_other_names() -> None:
    with pytest.raises(InvalidRequest, match="'fp4' is not supported; use none, dense, int8 or int4"):
        policy("fp4", 0, "layer")


@pytest.mark.parametrize("part", ["layer", "head"])
def test_the_policy_refuses_a_group_that_no_backend_takes(part: str) -> None:
    with pytest.raises(InvalidRequest, match="group 40 is not a multiple"):
        policy("int4", 40, "head" if part == "head" else "layer")


@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_the_number_of_threads_is_as_before(value: float) -> None:
    torch.set_num_threads(2)
    try:
        with nullcontext() if value == 1 else pytest.raises(InvalidRequest):
            quantize(DenseLinear(torch.full((2, 64), value)), 4, 64)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
