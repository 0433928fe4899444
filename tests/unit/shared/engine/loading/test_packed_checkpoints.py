"""GPTQ and AWQ tensors become the linears that they stand for, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from shared.engine.loading.linear import DenseLinear, Linear, QuantLinear, dequantize
from shared.engine.loading.packed_checkpoints import PackedFormat, PackedTensors, packed_format
from shared.errors import InvalidRequest
from tests.support.packed import Codes, awq_tensors, gptq_tensors, quantize_plainly

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
MODULE = "model.layers.0.mlp.up_proj"
SHAPE = (48, 160)


def weight_of(out: int = 48, columns: int = 160, seed: int = 0) -> Tensor:
    return torch.randn(out, columns, generator=torch.Generator().manual_seed(seed)) * 0.05


def read(fields: dict[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> Linear:
    stored = PackedTensors(MODULE, SHAPE, tensors, tensors.__getitem__)
    return packed_format(fields).read(stored, dtype)


def weight_in(linear: Linear) -> Tensor:
    weight = linear.weight if isinstance(linear, DenseLinear) else dequantize(linear, torch.float32)
    return weight.double()


def specs(fields: dict[str, Any], shape: tuple[int, int], names: tuple[str, ...] = ()) -> dict[str, Any]:
    return dict(packed_format(fields).tensors(MODULE, shape, names))


# --- the codes ---


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128, -1])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_gptq_weights_are_read_exactly(bits: int, group_size: int, symmetric: bool, version: int) -> None:
    codes = quantize_plainly(weight_of(), bits, group_size, symmetric=symmetric)
    fields = GPTQ | {"bits": bits, "group_size": group_size, "sym": symmetric}
    fields |= {"checkpoint_format": "gptq_v2"} if version == 2 else {}
    linear = read(fields, gptq_tensors(MODULE, codes, version))
    assert isinstance(linear, QuantLinear)
    assert torch.equal(weight_in(linear), codes.weight())


@pytest.mark.parametrize("group_size", [32, 64, 128, -1])
def test_awq_weights_are_read_exactly(group_size: int) -> None:
    codes = quantize_plainly(weight_of(), 4, group_size)
    linear = read(AWQ | {"group_size": group_size}, awq_tensors(MODULE, codes))
    assert isinstance(linear, QuantLinear)
    assert torch.equal(weight_in(linear), codes.weight())


def test_a_gptq_zero_of_nought_survives_the_first_format() -> None:
    codes = quantize_plainly(weight_of().abs(), 4, 32)
    assert not codes.zeros.any()
    linear = read(GPTQ | {"sym": False}, gptq_tensors(MODULE, codes))
    assert isinstance(linear, QuantLinear)
    assert not linear.zeros.any()


@pytest.mark.parametrize(("group_size", "group"), [(32, 32), (512, 512), (640, 128), (672, 32), (-1, 128)])
def test_groups_too_long_for_exact_sums_are_cut_without_changing_a_weight(
    group_size: int, group: int
) -> None:
    codes = quantize_plainly(weight_of(columns=1344), 8, group_size)
    linear = read(GPTQ | {"bits": 8, "group_size": group_size}, gptq_tensors(MODULE, codes))
    assert isinstance(linear, QuantLinear)
    assert linear.group == group
    assert torch.equal(weight_in(linear), codes.weight())


def test_tensors_of_backends_are_contiguous() -> None:
    linear = read(AWQ, awq_tensors(MODULE, quantize_plainly(weight_of(), 4, 32)))
    assert isinstance(linear, QuantLinear)
    assert all(part.is_contiguous() for part in (linear.codes, linear.scales, linear.zeros))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reordered_gptq_groups_are_dequantized_with_one_rounding(dtype: torch.dtype) -> None:
    order = torch.randperm(160, generator=torch.Generator().manual_seed(5))
    codes = quantize_plainly(weight_of(), 4, 32, order=order)
    linear = read(GPTQ | {"desc_act": True}, gptq_tensors(MODULE, codes), dtype)
    assert isinstance(linear, DenseLinear)
    assert torch.equal(linear.weight, codes.weight().float().to(dtype))


def test_desc_act_in_the_plain_order_stays_quantized() -> None:
    codes = quantize_plainly(weight_of(), 4, 32)
    assert isinstance(read(GPTQ | {"desc_act": True}, gptq_tensors(MODULE, codes)), QuantLinear)


def test_gptq_without_g_idx_has_the_plain_order() -> None:
    codes = quantize_plainly(weight_of(), 4, 32)
    tensors = gptq_tensors(MODULE, codes)
    del tensors[f"{MODULE}.g_idx"]
    assert torch.equal(weight_in(read(GPTQ, tensors)), codes.weight())


def test_scales_beyond_float16_are_dequantized() -> None:
    codes = quantize_plainly(weight_of(), 4, 32)
    tensors = awq_tensors(MODULE, codes) | {f"{MODULE}.scales": torch.full((5, 48), 1e-9).bfloat16()}
    linear = read(AWQ, tensors)
    assert isinstance(linear, DenseLinear)
    assert linear.weight.abs().max() > 0


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_bias_is_kept_unless_it_is_zero(value: float) -> None:
    tensors = gptq_tensors(MODULE, quantize_plainly(weight_of(), 4, 32))
    linear = read(GPTQ, tensors | {f"{MODULE}.bias": torch.full((48,), value).half()}, torch.bfloat16)
    if value == 0:
        assert linear.bias is None
    else:
        assert linear.bias is not None
        assert torch.equal(linear.bias, torch.full((48,), value, dtype=torch.bfloat16))


def test_group_indices_outside_the_groups_are_refused() -> None:
    tensors = gptq_tensors(MODULE, quantize_plainly(weight_of(), 4, 32))
    tensors[f"{MODULE}.g_idx"][7] = 5
    with pytest.raises(InvalidRequest, match=rf"{MODULE}\.g_idx names groups outside 0 to 4"):
        read(GPTQ, tensors)


def test_scales_that_are_not_finite_are_refused_by_name() -> None:
    tensors = awq_tensors(MODULE, quantize_plainly(weight_of(), 4, 32))
    tensors[f"{MODULE}.scales"][1, 1] = float("nan")
    with pytest.raises(InvalidRequest, match=rf"{MODULE}\.scales holds values that are not finite"):
        read(AWQ, tensors)


# --- what must be there ---


@pytest.mark.parametrize("bits", [4, 8])
def test_every_gptq_tensor_has_the_form_that_is_asked_for(bits: int) -> None:
    tensors = gptq_tensors(MODULE, quantize_plainly(weight_of(), bits, 64))
    _check(specs(GPTQ | {"bits": bits, "group_size": 64}, (48, 160), tuple(tensors)), tensors)


@pytest.mark.parametrize("group_size", [64, -1])
def test_every_awq_tensor_has_the_form_that_is_asked_for(group_size: int) -> None:
    tensors = awq_tensors(MODULE, quantize_plainly(weight_of(), 4, group_size))
    _check(specs(AWQ | {"group_size": group_size}, (48, 160), tuple(tensors)), tensors)


def _check(expected: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    names = {torch.int32: "I32", torch.float16: "F16"}
    assert expected.keys() == tensors.keys()
    for name, spec in expected.items():
        assert spec.shape == tuple(tensors[name].shape)
        assert names[tensors[name].dtype] in spec.dtypes


def test_reordered_gptq_asks_for_its_group_indices() -> None:
    assert f"{MODULE}.g_idx" in specs(GPTQ | {"desc_act": True}, (48, 160))


def test_a_bias_is_asked_for_where_there_is_one() -> None:
    assert specs(GPTQ, (48, 160), (f"{MODULE}.bias",))[f"{MODULE}.bias"].shape == (48,)


@pytest.mark.parametrize(("fields", "shape"), [(GPTQ, (48, 164)), (GPTQ, (44, 160)), (AWQ, (44, 160))])
def test_shapes_that_do_not_fill_words_are_refused(fields: dict[str, Any], shape: tuple[int, int]) -> None:
    with pytest.raises(InvalidRequest, match=rf"{MODULE} has shape .* packs only multiples of 8"):
        specs(fields, shape)


@pytest.mark.parametrize("listed", ["up_proj", "mlp", "model.layers.0"])
def test_a_packed_module_that_the_config_excludes_is_refused(listed: str) -> None:
    with pytest.raises(InvalidRequest, match="lists it in modules_to_not_convert"):
        specs(AWQ | {"modules_to_not_convert": [listed]}, (48, 160))


@pytest.mark.parametrize("listed", [None, [], ["lm_head"], ["mlp.gate"], ["up"]])
def test_modules_that_the_config_excludes_elsewhere_do_not_matter(listed: list[str] | None) -> None:
    assert specs(AWQ | {"modules_to_not_convert": listed}, (48, 160))


def test_a_module_is_packed_where_its_codes_are() -> None:
    packed = packed_format(GPTQ)
    assert packed.holds(MODULE, {f"{MODULE}.qweight"})
    assert not packed.holds(MODULE, {f"{MODULE}.weight"})


# --- what is refused ---


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "quant_method None is not supported"),
        ({"quant_method": "hqq"}, "quant_method 'hqq' is not supported"),
        (GPTQ | {"bits": 3}, "bits is 3, it must be 4 or 8"),
        (GPTQ | {"bits": None}, "bits is None"),
        (GPTQ | {"group_size": 0}, "group_size is 0, it must be -1 or a multiple of 32"),
        (GPTQ | {"group_size": 16}, "group_size is 16"),
        (GPTQ | {"group_size": "128"}, "group_size is '128'"),
        (GPTQ | {"group_size": True}, "group_size is True"),
        (GPTQ | {"desc_act": "yes"}, "desc_act is 'yes', it must be true or false"),
        (GPTQ | {"sym": 1}, "sym is 1, it must be true or false"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin', it must be gptq or gptq_v2"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format is True"),
        (GPTQ | {"pack_dtype": "int8"}, "pack_dtype is 'int8'"),
        (GPTQ | {"dynamic": {"+:.*down.*": {"bits": 8}}}, "dynamic is"),
        (GPTQ | {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert is 'lm_head'"),
        (AWQ | {"bits": 8}, "bits is 8, it must be 4"),
        (AWQ | {"version": "gemv"}, "version is 'gemv', it must be gemm"),
        (AWQ | {"group_size": 48}, "group_size is 48"),
        (AWQ | {"zero_point": "no"}, "zero_point is 'no'"),
    ],
)
def test_a_format_that_cannot_be_read_is_refused_by_its_field(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        packed_format(fields)


@pytest.mark.parametrize(
    "fields",
    [
        GPTQ | {"checkpoint_format": "gptq", "pack_dtype": "int32", "dynamic": {"-:.*gate": {}}, "meta": {}},
        GPTQ | {"damp_percent": 0.01, "true_sequential": True, "model_name_or_path": None, "lm_head": False},
        AWQ | {"version": "GEMM", "modules_to_not_convert": None},
    ],
)
def test_fields_that_do_not_change_the_form_are_ignored(fields: dict[str, Any]) -> None:
    assert isinstance(packed_format(fields), PackedFormat)


def test_codes_of_the_tests_are_what_they_quantize() -> None:
    weight = weight_of()
    codes: Codes = quantize_plainly(weight, 8, 32)
    assert (codes.weight() - weight).abs().max() < 0.002
