"""FP8 and MXFP4: tensors as they are published become the weights that transformers makes of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from shared.engine.loading.linear import DenseLinear, Linear, QuantLinear, dequantize
from shared.engine.loading.packed_checkpoints import PackedTensors, packed_format
from shared.errors import InvalidRequest
from tests.support.packed import fp8_block_tensors, mxfp4_tensors

MODULE = "model.layers.0.mlp.up_proj"
SHAPE = (72, 160)
BLOCKS: dict[str, Any] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [32, 64],
}
STATIC: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
MXFP4: dict[str, Any] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}


def weight_of() -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(4)) * 0.05


def read(fields: dict[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> Linear:
    return packed_format(fields).read(PackedTensors(MODULE, SHAPE, tensors, tensors.__getitem__), dtype)


# --- fp8 ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_blocks_are_what_transformers_makes_of_them(dtype: torch.dtype) -> None:
    tensors = fp8_block_tensors(MODULE, weight_of(), (32, 64))
    theirs = _dequantize_fp8_weight(
        tensors[f"{MODULE}.weight"], tensors[f"{MODULE}.weight_scale_inv"], [32, 64], torch.float32
    )
    linear = read(BLOCKS, tensors, dtype)
    assert isinstance(linear, DenseLinear)
    assert torch.equal(linear.weight, theirs.to(dtype))  # one rounding
    assert (linear.weight - weight_of()).abs().max() < 0.02


@pytest.mark.parametrize("stored", [torch.uint8, torch.float8_e8m0fnu])
def test_fp8_scales_may_be_powers_of_two(stored: torch.dtype) -> None:
    tensors = fp8_block_tensors(MODULE, weight_of(), (32, 64))
    exponents = tensors[f"{MODULE}.weight_scale_inv"].log2().floor()
    plain = tensors | {f"{MODULE}.weight_scale_inv": torch.exp2(exponents)}
    powers = tensors | {f"{MODULE}.weight_scale_inv": (exponents + 127).to(torch.uint8).view(stored)}
    ours, theirs = read(BLOCKS | {"scale_fmt": "ue8m0"}, powers), read(BLOCKS, plain)
    assert isinstance(ours, DenseLinear)
    assert isinstance(theirs, DenseLinear)
    assert torch.equal(ours.weight, theirs.weight)


@pytest.mark.parametrize("name", ["weight_scale_inv", "weight_scale"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_fp8_with_one_scale_is_read_under_either_name(name: str, shape: tuple[int, ...]) -> None:
    codes = (weight_of() / 0.01).to(torch.float8_e4m3fn)
    tensors = {f"{MODULE}.weight": codes, f"{MODULE}.{name}": torch.full(shape, 0.01)}
    spec = packed_format(STATIC).tensors(MODULE, SHAPE, tensors)[f"{MODULE}.{name}"]
    assert shape in (spec.shape, spec.other_shape)
    linear = read(STATIC, tensors)
    assert isinstance(linear, DenseLinear)
    assert torch.equal(linear.weight, codes.float() * torch.tensor(0.01))


def test_every_fp8_tensor_has_the_form_that_is_asked_for() -> None:
    tensors = fp8_block_tensors(MODULE, weight_of(), (32, 64))
    specs = packed_format(BLOCKS).tensors(MODULE, SHAPE, tensors)
    assert {name: spec.shape for name, spec in specs.items()} == {
        name: tuple(tensor.shape) for name, tensor in tensors.items()
    }
    assert specs[f"{MODULE}.weight"].dtypes == ("F8_E4M3",)


@pytest.mark.parametrize("name", ["up_proj.activation_scale", "up_proj.input_scale"])
def test_scales_of_activations_are_ignored_where_they_are_static(name: str) -> None:
    assert packed_format(STATIC).may_ignore(name)
    assert not packed_format(BLOCKS).may_ignore(name)


def test_scales_of_an_fp8_kv_cache_are_ignored_where_the_config_has_them() -> None:
    assert packed_format(BLOCKS | {"kv_cache_scheme": {}}).may_ignore("model.layers.0.self_attn.k_scale")
    assert not packed_format(BLOCKS).may_ignore("model.layers.0.self_attn.k_scale")


@pytest.mark.parametrize("part", ["weight", "weight_scale_inv"])
def test_fp8_tensors_that_are_not_finite_are_refused_by_name(part: str) -> None:
    tensors = fp8_block_tensors(MODULE, weight_of(), (32, 64))
    tensors[f"{MODULE}.{part}"].view(-1)[3] = float("nan")
    with pytest.raises(InvalidRequest, match=rf"{MODULE}\.{part} holds .* that are not finite"):
        read(BLOCKS, tensors)


@pytest.mark.parametrize("field", ["modules_to_not_convert", "ignored_layers"])
def test_a_packed_module_that_the_fp8_config_excludes_is_refused(field: str) -> None:
    with pytest.raises(InvalidRequest, match="quantization_config lists it in"):
        packed_format(BLOCKS | {field: [MODULE]}).tensors(MODULE, SHAPE, ())


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (BLOCKS | {"fmt": "e5m2"}, "fmt is 'e5m2', it must be e4m3"),
        (BLOCKS | {"scale_fmt": "log"}, "scale_fmt is 'log', it must be float or ue8m0"),
        (BLOCKS | {"expert_dtype": "fp4"}, "expert_dtype is 'fp4', it must be fp8"),
        (BLOCKS | {"modules_to_convert": ["embed_tokens"]}, "modules_to_convert is .* it must be null"),
        (BLOCKS | {"activation_scheme": "none"}, "activation_scheme is 'none', it must be dynamic or static"),
        (
            BLOCKS | {"weight_block_size": [128]},
            r"weight_block_size is \[128\], it must be two whole numbers",
        ),
        (BLOCKS | {"weight_block_size": [0, 128]}, r"weight_block_size is \[0, 128\]"),
        (BLOCKS | {"weight_block_size": 128}, "weight_block_size is 128"),
        (BLOCKS | {"is_checkpoint_fp8_serialized": False}, "is_checkpoint_fp8_serialized is False"),
        (BLOCKS | {"surprise": 1}, "quantization_config: field 'surprise' is not known"),
        (MXFP4 | {"surprise": 1}, "quantization_config: field 'surprise' is not known"),
        (MXFP4 | {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert is 'lm_head'"),
    ],
)
def test_a_float_format_that_cannot_be_read_is_refused_by_its_field(
    fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        packed_format(fields)


# --- mxfp4 ---


def test_mxfp4_is_what_transformers_makes_of_it_and_stays_codes() -> None:
    tensors = mxfp4_tensors(f"{MODULE}.weight", weight_of())
    theirs = convert_moe_packed_tensors(
        tensors[f"{MODULE}.weight_blocks"][None],
        tensors[f"{MODULE}.weight_scales"][None],
        dtype=torch.float32,
    )
    linear = read(MXFP4, tensors)
    assert isinstance(linear, QuantLinear)
    assert (linear.bits, linear.group) == (8, 32)
    assert torch.equal(dequantize(linear, torch.float32), theirs[0].T)
    assert (theirs[0].T - weight_of()).abs().max() < 0.06


@pytest.mark.parametrize("exponent", [0, 60, 200, 254])
def test_mxfp4_powers_beyond_float16_are_dequantized(exponent: int) -> None:
    tensors = mxfp4_tensors(f"{MODULE}.weight", weight_of())
    tensors[f"{MODULE}.weight_scales"][1, 2] = exponent
    theirs = convert_moe_packed_tensors(
        tensors[f"{MODULE}.weight_blocks"][None],
        tensors[f"{MODULE}.weight_scales"][None],
        dtype=torch.float32,
    )
    linear = read(MXFP4, tensors)
    assert isinstance(linear, DenseLinear)
    assert torch.equal(linear.weight, theirs[0].T)


def test_every_mxfp4_tensor_has_the_form_that_is_asked_for() -> None:
    tensors = mxfp4_tensors(f"{MODULE}.weight", weight_of())
    specs = packed_format(MXFP4).tensors(MODULE, SHAPE, tensors)
    assert {name: spec.shape for name, spec in specs.items()} == {
        name: tuple(tensor.shape) for name, tensor in tensors.items()
    }


def test_the_mxfp4_scale_that_is_no_number_is_refused() -> None:
    tensors = mxfp4_tensors(f"{MODULE}.weight", weight_of())
    tensors[f"{MODULE}.weight_scales"][0, 0] = 255
    with pytest.raises(InvalidRequest, match=rf"{MODULE}\.weight_scales holds values that are not finite"):
        read(MXFP4, tensors)


def test_mxfp4_inputs_that_do_not_fill_blocks_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="mxfp4 packs only multiples of 32 inputs"):
        packed_format(MXFP4).tensors(MODULE, (72, 150), ())
