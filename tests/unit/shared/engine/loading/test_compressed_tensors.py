"""compressed-tensors: its own package writes the tensors, and what it reads from them is what we read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from shared.engine.loading.linear import DenseLinear, Linear, QuantLinear, dequantize
from shared.engine.loading.packed_checkpoints import PackedTensors, packed_format
from shared.errors import InvalidRequest
from tests.support.compressed import Compression, config_of

MODULE = "model.layers.0.mlp.up_proj"
SHAPE = (48, 160)
GROUP4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
CHANNEL8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
FLOAT8 = {"num_bits": 8, "type": "float"}
DYNAMIC = {"input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}}
STATIC = {"input_activations": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}}
PACKED4 = Compression("pack-quantized", GROUP4)

COMPRESSIONS = {
    "fp8, a tensor": Compression("float-quantized", FLOAT8 | {"strategy": "tensor"}, False, more=STATIC),
    "fp8, channels": Compression("float-quantized", FLOAT8 | {"strategy": "channel"}, False),
    "fp8, blocks": Compression(
        "float-quantized", FLOAT8 | {"strategy": "block", "block_structure": [32, 80]}, False
    ),
    "fp8, groups": Compression("naive-quantized", FLOAT8 | {"strategy": "group", "group_size": 80}, False),
    "int8, channels": Compression("int-quantized", CHANNEL8, more=DYNAMIC),
    "int8, channels in bf16": Compression("int-quantized", CHANNEL8, scale_dtype=torch.bfloat16),
    "int8, a tensor": Compression("int-quantized", CHANNEL8 | {"strategy": "tensor"}),
    "int8, groups": Compression("naive-quantized", CHANNEL8 | {"strategy": "group", "group_size": 32}),
    "int8, asymmetric": Compression("naive-quantized", CHANNEL8 | {"symmetric": False}),
    "int8, blocks": Compression(
        "naive-quantized", CHANNEL8 | {"strategy": "block", "block_structure": [16, 32]}, False
    ),
    "int4 in bytes": Compression("naive-quantized", GROUP4),
    "int4": PACKED4,
    "int4, asymmetric": Compression("pack-quantized", GROUP4 | {"group_size": 80, "symmetric": False}, False),
    "int4, asymmetric groups of 32": Compression("pack-quantized", GROUP4 | {"symmetric": False}),
    "int4, asymmetric channels": Compression(
        "pack-quantized", {"num_bits": 4, "strategy": "channel", "symmetric": False}
    ),
    "int4, asymmetric tensor": Compression(
        "pack-quantized", {"num_bits": 4, "strategy": "tensor", "symmetric": False}
    ),
    "int8 in words": Compression("pack-quantized", CHANNEL8 | {"symmetric": False}),
    "int4, groups of 16": Compression("pack-quantized", GROUP4 | {"group_size": 16}, False),
}


def weight_of(*shape: int) -> Tensor:
    return torch.randn(*(shape or SHAPE), generator=torch.Generator().manual_seed(3)) * 0.05


def read(
    fields: dict[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype = torch.float32, shape: Any = SHAPE
) -> Linear:
    return packed_format(fields).read(PackedTensors(MODULE, shape, tensors, tensors.__getitem__), dtype)


def weight_in(linear: Linear) -> Tensor:
    return linear.weight if isinstance(linear, DenseLinear) else dequantize(linear, torch.float32)


def stored(compression: Compression = PACKED4, *shape: int) -> dict[str, Tensor]:
    return compression.compress(MODULE, weight_of(*shape))


# --- the weights ---


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_weights_are_those_that_compressed_tensors_reads(name: str) -> None:
    compression = COMPRESSIONS[name]
    tensors = stored(compression)
    linear = read(config_of(("Linear", compression)), tensors)
    assert isinstance(linear, QuantLinear) == compression.keeps_codes
    assert torch.equal(weight_in(linear), compression.decompress(MODULE, tensors))
    assert (weight_in(linear) - weight_of()).abs().max() < 0.03


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_every_tensor_has_the_form_that_is_asked_for(name: str) -> None:
    tensors = stored(COMPRESSIONS[name])
    specs = packed_format(config_of(("Linear", COMPRESSIONS[name]))).tensors(MODULE, SHAPE, tensors)
    spelled = {torch.int32: "I32", torch.int64: "I64", torch.int8: "I8", torch.float8_e4m3fn: "F8_E4M3"}
    spelled |= {torch.float32: "F32", torch.bfloat16: "BF16"}
    assert specs.keys() == tensors.keys()
    for tensor, spec in specs.items():
        assert tuple(tensors[tensor].shape) in (spec.shape, spec.other_shape)
        assert spelled[tensors[tensor].dtype] in spec.dtypes


def test_what_is_dequantized_is_rounded_once() -> None:
    compression = COMPRESSIONS["fp8, channels"]
    linear = read(config_of(("Linear", compression)), stored(compression), torch.bfloat16)
    assert torch.equal(weight_in(linear), compression.decompress(MODULE, stored(compression)).bfloat16())


def test_inputs_that_do_not_fill_their_last_word_are_read() -> None:
    compression = Compression("pack-quantized", {"num_bits": 4, "strategy": "channel"})
    tensors = stored(compression, 20, 44)
    linear = read(config_of(("Linear", compression)), tensors, shape=(20, 44))
    assert torch.equal(weight_in(linear), compression.decompress(MODULE, tensors))


def test_reordered_groups_are_dequantized() -> None:
    tensors = stored()
    order = torch.arange(160)[torch.randperm(160, generator=torch.Generator().manual_seed(1))] // 32
    fields = config_of(("Linear", PACKED4))
    fields["config_groups"]["group_0"]["weights"]["actorder"] = "group"
    plain = PACKED4.decompress(MODULE, tensors)
    scale = tensors[f"{MODULE}.weight_scale"]
    codes = (plain / scale.repeat_interleave(32, 1)).round()
    linear = read(fields, tensors | {f"{MODULE}.weight_g_idx": order.int()})
    assert isinstance(linear, DenseLinear)
    assert torch.equal(linear.weight, codes * scale[:, order])


@pytest.mark.parametrize("groups", [torch.full((160,), -1), torch.arange(160) // 32])
def test_group_indices_in_the_plain_order_keep_the_codes(groups: Tensor) -> None:
    linear = read(config_of(("Linear", PACKED4)), stored() | {f"{MODULE}.weight_g_idx": groups.int()})
    assert isinstance(linear, QuantLinear)


def test_zero_points_of_nought_in_a_symmetric_scheme_are_taken() -> None:
    tensors = stored() | {f"{MODULE}.weight_zero_point": torch.zeros(48, 5, dtype=torch.int8)}
    fields = config_of(("Linear", PACKED4))
    assert f"{MODULE}.weight_zero_point" in packed_format(fields).tensors(MODULE, SHAPE, tensors)
    assert torch.equal(weight_in(read(fields, tensors)), PACKED4.decompress(MODULE, stored()))


# --- which module has which scheme ---


def specs(fields: dict[str, Any], module: str = MODULE) -> dict[str, Any]:
    return packed_format(fields).tensors(module, SHAPE, ())


@pytest.mark.parametrize(
    "target", ["Linear", MODULE, "re:.*up_proj$", r"re:model\.layers\.\d+\.mlp\.(up|gate)_proj"]
)
def test_a_module_is_found_by_its_class_its_name_or_a_pattern(target: str) -> None:
    assert f"{MODULE}.weight_packed" in specs(config_of((target, PACKED4)))


@pytest.mark.parametrize("target", ["Embedding", "model.layers.1.mlp.up_proj", "re:up_proj", "re:.*up$"])
def test_a_packed_module_that_no_group_targets_is_refused(target: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{MODULE} is packed, but quantization_config has no weights"):
        specs(config_of((target, PACKED4)))


def test_a_packed_module_that_no_group_names_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="has no weights for it"):
        specs(config_of(("re:.*down_proj", PACKED4)))


@pytest.mark.parametrize("ignored", [MODULE, "re:.*mlp.*", "Linear"])
def test_a_packed_module_that_is_ignored_is_refused(ignored: str) -> None:
    with pytest.raises(InvalidRequest, match="or lists it in ignore"):
        specs(config_of(("Linear", PACKED4), ignore=(ignored,)))


def test_of_several_groups_the_nearest_target_counts() -> None:
    narrow, wide = COMPRESSIONS["int8, channels"], PACKED4
    for groups in (
        (("Linear", wide), ("re:.*up_proj", narrow)),
        (("re:.*up_proj", narrow), ("Linear", wide)),
    ):
        fields = config_of(*groups)
        assert f"{MODULE}.weight" in specs(fields)
        assert "model.layers.0.mlp.down_proj.weight_packed" in specs(fields, "model.layers.0.mlp.down_proj")


def test_a_module_is_packed_where_its_scales_are() -> None:
    packed = packed_format(config_of(("Linear", PACKED4)))
    assert packed.holds(MODULE, {f"{MODULE}.weight_packed"})
    assert packed.holds(MODULE, {f"{MODULE}.weight_scale"})
    assert not packed.holds(MODULE, {f"{MODULE}.weight"})


# --- what is not read ---


@pytest.mark.parametrize("name", ["up_proj.input_scale", "up_proj.input_zero_point"])
def test_scales_of_activations_are_ignored_where_the_config_has_them(name: str) -> None:
    static, dynamic = COMPRESSIONS["fp8, a tensor"], COMPRESSIONS["int8, channels"]
    assert packed_format(config_of(("Linear", static))).may_ignore(name)
    assert not packed_format(config_of(("Linear", dynamic))).may_ignore(name)


@pytest.mark.parametrize("name", ["self_attn.k_scale", "self_attn.v_scale"])
def test_scales_of_a_kv_cache_are_ignored_where_the_config_has_them(name: str) -> None:
    fields = config_of(("Linear", PACKED4))
    assert not packed_format(fields).may_ignore(name)
    fields["kv_cache_scheme"] = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    assert packed_format(fields).may_ignore(name)
    assert not packed_format(fields).may_ignore("self_attn.other_scale")


def edit(**changes: Any) -> Callable[[dict[str, Any]], None]:
    """Of the fields that are named: `weights__num_bits` is in `weights` of the one group."""

    def change(fields: dict[str, Any]) -> None:
        for path, value in changes.items():
            *outer, name = path.split("__")
            at = fields["config_groups"]["group_0"] if outer else fields
            (at["weights"] if outer == ["weights"] else at)[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            edit(format="nvfp4-pack-quantized"),
            "format 'nvfp4-pack-quantized' is not supported; it must be one of",
        ),
        (edit(format="marlin-24"), "format 'marlin-24' is not supported"),
        (edit(format=None), "format None is not supported"),
        (edit(group__format="sparse-24-bitmask"), "'group_0': format 'sparse-24-bitmask'"),
        (edit(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config is .*sparse and rotated"),
        (edit(transform_config={"config_groups": {"R1": {}}}), "transform_config is .*rotated"),
        (edit(quantization_status="calibration"), "quantization_status is 'calibration'"),
        (edit(config_groups=[]), r"config_groups is \[\], it must be an object"),
        (
            edit(config_groups={"W4A16": ["Linear"]}),
            r"config_groups.'W4A16' is \['Linear'\]; it must be an object",
        ),
        (edit(surprise=1), "quantization_config: field 'surprise' is not known"),
        (edit(group__surprise=1), "'group_0': field 'surprise' is not known"),
        (edit(weights__surprise=1), r"'group_0'\.weights: field 'surprise' is not known"),
        (edit(group__weights="int4"), "weights is 'int4'; it must be an object"),
        (edit(group__output_activations={"num_bits": 8}), "output_activations is not supported"),
        (edit(group__targets="Linear"), "targets must be a list of at most 65536 names, not 'Linear'"),
        (edit(ignore=[7]), r"ignore must be a list of at most 65536 names, not \[7\]"),
        (edit(ignore=["x"] * 65537), "ignore must be a list of at most 65536 names"),
        (edit(ignore=["re:("]), r"ignore has '\(', which is no regular expression"),
        (edit(ignore=["re:(a+)+b"]), r"pattern '\(a\+\)\+b', which may take too long"),
        (edit(ignore=["re:" + ".*" * 7]), "which may take too long"),
        (edit(ignore=["re:" + "a" * 501]), "which may take too long; use one of at most 500 characters"),
        (edit(weights__num_bits=3), "num_bits is 3, it must be 4 or 8"),
        (edit(weights__type="float"), "num_bits is 4, it must be 8"),
        (edit(weights__type="complex"), "type is 'complex', it must be int or float"),
        (edit(weights__dynamic=True), "dynamic is True, it must be false"),
        (edit(weights__symmetric=1), "symmetric is 1, it must be true"),
        (edit(weights__actorder="random"), "actorder is 'random', it must be null, weight or group"),
        (edit(weights__strategy="tensor_group"), "strategy is 'tensor_group', it must be one of tensor"),
        (edit(weights__strategy="block"), "group_size is 32, it must be null for this strategy"),
        (edit(weights__group_size=0), "group_size is 0, it must be above 0"),
        (edit(weights__group_size="32"), "group_size is '32', it must be above 0"),
        (edit(weights__group_size=None), "group_size is None, it must be above 0 for strategy group"),
    ],
)
def test_a_scheme_that_cannot_be_read_is_refused_by_its_field(
    change: Callable[[dict[str, Any]], None], sentence: str
) -> None:
    fields = config_of(("Linear", PACKED4))
    change(fields)
    with pytest.raises(InvalidRequest, match=sentence):
        packed_format(fields)


@pytest.mark.parametrize("pattern", ["re:" + ".*" * 6, "re:" + "a" * 500])
def test_patterns_as_long_as_they_may_be_are_taken(pattern: str) -> None:
    assert packed_format(config_of(("Linear", PACKED4), ignore=(pattern,)))


def test_a_group_that_does_not_divide_the_inputs_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=f"{MODULE} has 100 inputs, which groups of 32 do not divide"):
        packed_format(config_of(("Linear", PACKED4))).tensors(MODULE, (48, 100), ())


@pytest.mark.parametrize(
    ("compression", "part", "value", "sentence"),
    [
        (
            PACKED4,
            "weight_shape",
            torch.tensor([48, 168]),
            r"weight_shape says \[48, 168\], config.json says",
        ),
        (
            PACKED4,
            "weight_scale",
            torch.full((48, 5), float("inf")),
            "weight_scale holds values that are not",
        ),
        (
            PACKED4,
            "weight_zero_point",
            torch.ones(48, 5, dtype=torch.int8),
            "weight_zero_point is not zero, but",
        ),
        (PACKED4, "weight_g_idx", torch.full((160,), 5), "weight_g_idx names groups outside 0 to 4"),
        (
            COMPRESSIONS["int4 in bytes"],
            "weight",
            torch.full(SHAPE, 8, dtype=torch.int8),
            r"up_proj\.weight holds more than 4 bits",
        ),
        (
            COMPRESSIONS["fp8, channels"],
            "weight",
            torch.full(SHAPE, float("nan")).to(torch.float8_e4m3fn),
            r"up_proj\.weight holds weights that are not finite",
        ),
    ],
)
def test_tensors_that_contradict_their_config_are_refused_by_name(
    compression: Compression, part: str, value: Tensor, sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        read(config_of(("Linear", compression)), stored(compression) | {f"{MODULE}.{part}": value})
