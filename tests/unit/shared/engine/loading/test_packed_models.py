"""Directories of compressed-tensors, FP8 and MXFP4, beside transformers on the weights they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DeepseekV3Config, GptOssConfig, LlamaConfig, PreTrainedConfig, Qwen3MoeConfig

from shared.engine.engine_config import EngineConfig
from shared.engine.loading.config import load_model_config
from shared.engine.loading.layers import DenseMlp, ModelWeights, MoeMlp
from shared.engine.loading.linear import DenseLinear, QuantLinear, dequantize
from shared.engine.loading.weights import load_weights
from shared.engine.measuring.model_work import work_of
from shared.engine.memory.kv_pool import KvLayout
from shared.errors import InvalidRequest
from tests.support.compressed import Compression, config_of
from tests.support.engine import make_engine, oracle, oracle_logits, prompts, save_random_model
from tests.support.packed import fp8_block_tensors, mxfp4_tensors

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
}
EXPERTS = SHAPE | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
LATENT = SHAPE | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
QUERY = "model.layers.0.self_attn.q_proj"
FP8 = Compression("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"})
INT8 = Compression("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"})
INT4 = Compression(
    "pack-quantized",
    {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False},
)
GPT_OSS = SHAPE | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}

Packed = tuple[dict[str, Tensor], Tensor]
"""Tensors as they are stored, and the weight that they stand for."""


@dataclass(frozen=True)
class Packing:
    """One way to store a model's linears."""

    fields: dict[str, Any]  # quantization_config
    pack: Callable[[str, Tensor], Packed]  # of a module's name and weight
    keeps_codes: bool
    config_class: type[PreTrainedConfig] = LlamaConfig
    shape: dict[str, Any] | None = None
    suffix: str = "_proj.weight"  # of the tensors that are stored packed


def _compressed(*groups: tuple[str, Compression], keeps_codes: bool = True) -> Packing:
    def pack(module: str, weight: Tensor) -> Packed:
        by_name = {target.removeprefix("re:.*"): each for target, each in groups}
        chosen = next((each for end, each in by_name.items() if module.endswith(end)), groups[-1][1])
        stored = chosen.compress(module, weight)
        return stored, chosen.decompress(module, stored)

    return Packing(config_of(*groups), pack, keeps_codes)


def _fp8_blocks(module: str, weight: Tensor) -> Packed:
    stored = fp8_block_tensors(module, weight, (32, 32))
    spread = stored[f"{module}.weight_scale_inv"].repeat_interleave(32, 0).repeat_interleave(32, 1)
    return stored, stored[f"{module}.weight"].float() * spread[: weight.shape[0], : weight.shape[1]]


def _fp8_at_once(module: str, weight: Tensor) -> Packed:
    scale = weight.abs().max().view(1) / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    stored = {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(0.1)}
    return {f"{module}.{part}": tensor for part, tensor in stored.items()}, codes.float() * scale


def _mxfp4(module: str, weight: Tensor) -> Packed:
    stored = mxfp4_tensors(f"{module}.weight" if weight.dim() == 2 else module, weight)
    blocks, scales = stored.values()
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    pairs = torch.stack((values[blocks.int() & 15], values[blocks.int() >> 4]), -1).flatten(-2)
    return stored, (pairs * torch.exp2(scales.float() - 127)[..., None]).flatten(-2)


def _mxfp4_transposed(module: str, weight: Tensor) -> Packed:
    """Of gpt-oss' experts, which are [in, out] where they are not packed."""
    stored, stands_for = _mxfp4(module, weight.transpose(1, 2).contiguous())
    return stored, stands_for.transpose(1, 2)


PACKINGS = {
    "fp8 by channels": _compressed(("Linear", FP8), keeps_codes=False),
    "int8 by channels": _compressed(("Linear", INT8)),
    "int4 by groups": _compressed(("Linear", INT4)),
    "int8 attention, int4 elsewhere": _compressed(
        ("re:.*q_proj", INT8), ("re:.*o_proj", INT8), ("Linear", INT4)
    ),
    "fp8 by blocks": Packing(
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32]},
        _fp8_blocks,
        keeps_codes=False,
    ),
    "fp8 with one scale": Packing(
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        _fp8_at_once,
        keeps_codes=False,
    ),
    "mxfp4": Packing(MXFP4, _mxfp4, keeps_codes=True),
    "fp8 experts by blocks": Packing(
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32]},
        _fp8_blocks,
        keeps_codes=False,
        config_class=Qwen3MoeConfig,
        shape=EXPERTS,
    ),
    "fp8 latents by blocks": Packing(
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32]},
        _fp8_blocks,
        keeps_codes=False,
        config_class=DeepseekV3Config,
        shape=LATENT,
    ),
    "int8 latents by channels": replace(
        _compressed(("Linear", INT8)), config_class=DeepseekV3Config, shape=LATENT
    ),
    "mxfp4 experts, stacked": Packing(
        MXFP4, _mxfp4, keeps_codes=True, config_class=Qwen3MoeConfig, shape=EXPERTS, suffix="experts.*_proj"
    ),
    "gpt-oss, mxfp4 experts": Packing(
        {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
        },
        _mxfp4_transposed,
        keeps_codes=True,
        config_class=GptOssConfig,
        shape=GPT_OSS,
        suffix="experts.*_proj",
    ),
}
DENSE = [name for name, packing in PACKINGS.items() if not packing.keeps_codes]


def save_packed(folder: Path, packing: Packing) -> tuple[Path, Path]:
    """A packed directory, and the plain one that holds what it stands for."""
    shape = packing.shape or SHAPE
    stacked = "experts.*" in packing.suffix
    options = {"save_original_format": False} if stacked else {}
    plain = save_random_model(folder / "plain", packing.config_class, save_options=options, **shape)
    dense = load_file(plain / "model.safetensors")
    packed: dict[str, Tensor] = {}
    for name, tensor in dense.items():
        if not (name.endswith("_proj") and ".experts." in name if stacked else name.endswith(packing.suffix)):
            packed[name] = tensor
            continue
        stored, stands_for = packing.pack(name.removesuffix(".weight"), tensor)
        packed |= stored
        dense[name] = stands_for.float().contiguous()
    save_file(dense, plain / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((plain / "config.json").read_text("utf-8"))
    (folder / "packed").mkdir()
    fields = config | {"quantization_config": packing.fields}
    (folder / "packed" / "config.json").write_text(json.dumps(fields))
    save_file(packed, folder / "packed" / "model.safetensors", metadata={"format": "pt"})
    return folder / "packed", plain


def edit(folder: Path, **tensors: Tensor | None) -> Path:
    """Tensors of the first query projection; None removes one."""
    stored = load_file(folder / "model.safetensors")
    for part, tensor in tensors.items():
        stored.pop(f"{QUERY}.{part}", None)
        if tensor is not None:
            stored[f"{QUERY}.{part}"] = tensor
    save_file(stored, folder / "model.safetensors")
    return folder


def load(folder: Path, dtype: str = "auto", **fields: Any) -> ModelWeights:
    return load_weights(folder, load_model_config(folder, dtype), torch.device("cpu"), **fields)


def matrices(weights: ModelWeights) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, layer in enumerate(weights.layers):
        found |= {f"{number}.qkv": layer.qkv, f"{number}.output": layer.output}
        mlps = layer.mlp.experts if isinstance(layer.mlp, MoeMlp) else (layer.mlp,)
        for index, mlp in enumerate(mlps):
            assert isinstance(mlp, DenseMlp)
            found |= {f"{number}.{index}.gate_up": mlp.gate_up, f"{number}.{index}.down": mlp.down}
    return found


@pytest.mark.parametrize("name", PACKINGS)
def test_a_directory_holds_exactly_the_weights_it_stands_for(name: str, tmp_path: Path) -> None:
    packed, plain = save_packed(tmp_path, PACKINGS[name])
    held, theirs = matrices(load(packed)), matrices(load(plain))
    assert any(isinstance(ours, QuantLinear) for ours in held.values()) == PACKINGS[name].keeps_codes
    for place, ours in held.items():
        weight = ours.weight if isinstance(ours, DenseLinear) else dequantize(ours, torch.float32)
        assert torch.equal(weight, theirs[place].weight), place


@pytest.mark.parametrize("name", DENSE)
def test_logits_of_what_is_dequantized_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    packed, plain = save_packed(tmp_path, PACKINGS[name])
    ids = prompts(1, 97, longest=40)[0]
    assert (make_engine(packed).logits(ids) - oracle_logits(oracle(plain), ids)).abs().max() < 1e-4


@pytest.mark.parametrize("name", [name for name in PACKINGS if name not in DENSE])
def test_logits_of_codes_are_near_those_of_transformers(name: str, tmp_path: Path) -> None:
    packed, plain = save_packed(tmp_path, PACKINGS[name])
    ids = prompts(1, 97, longest=40)[0]
    ours, theirs = make_engine(packed).logits(ids), oracle_logits(oracle(plain), ids)
    # What is left is the quantization of the activations.
    assert (ours - theirs).square().mean() < 2e-3 * theirs.square().mean()


def test_transformers_reads_the_same_from_the_packed_directory_itself(tmp_path: Path) -> None:
    packed, _ = save_packed(tmp_path, PACKINGS["fp8 by channels"])
    ids = prompts(1, 97, longest=40)[0]
    assert (make_engine(packed).logits(ids) - oracle_logits(oracle(packed), ids)).abs().max() < 1e-4


def test_transformers_reads_the_same_from_a_packed_gpt_oss(tmp_path: Path) -> None:
    packed, plain = save_packed(tmp_path, PACKINGS["gpt-oss, mxfp4 experts"])
    ids = prompts(1, 97, longest=40)[0]
    assert (oracle_logits(oracle(packed), ids) - oracle_logits(oracle(plain), ids)).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["int8 by channels", "int4 by groups"])
def test_codes_stay_codes(name: str, tmp_path: Path) -> None:
    packed, _ = save_packed(tmp_path, PACKINGS[name])
    for linear in matrices(load(packed)).values():
        assert isinstance(linear, QuantLinear)
        assert linear.bits == (8 if "int8" in name else 4)


def test_what_is_dequantized_is_quantized_at_load_as_any_other_weight(tmp_path: Path) -> None:
    packed, plain = save_packed(tmp_path, PACKINGS["fp8 by blocks"])
    theirs = matrices(load(plain, quantization="int8"))
    for place, ours in matrices(load(packed, quantization="int8")).items():
        assert isinstance(ours, QuantLinear)
        assert torch.equal(ours.codes, theirs[place].codes)


def test_a_linear_that_is_not_packed_is_read_as_it_is(tmp_path: Path) -> None:
    packed, _ = save_packed(tmp_path, PACKINGS["int4 by groups"])
    weight = torch.randn(64, 64)
    parts = dict.fromkeys(["weight_packed", "weight_scale", "weight_shape", "weight_zero_point"])
    ours = load(edit(packed, **parts, weight=weight)).layers[0].qkv
    assert isinstance(ours, DenseLinear)  # what is fused with a dense part is dense
    assert torch.equal(ours.weight[:64], weight)


def test_scales_of_a_kv_cache_in_the_file_are_ignored_where_the_config_has_them(tmp_path: Path) -> None:
    packed, _ = save_packed(tmp_path, PACKINGS["fp8 by channels"])
    edit(packed, k_scale=torch.tensor(1.0))
    with pytest.raises(
        InvalidRequest, match=rf"holds {QUERY}\.k_scale, which a LlamaForCausalLM does not have"
    ):
        load(packed)
    config = json.loads((packed / "config.json").read_text("utf-8"))
    config["quantization_config"]["kv_cache_scheme"] = {"num_bits": 8, "type": "float"}
    (packed / "config.json").write_text(json.dumps(config))
    assert load(packed)


@pytest.mark.parametrize(
    ("name", "parts", "sentence"),
    [
        (
            "fp8 by channels",
            {"weight_scale": None},
            rf"tensor {QUERY}\.weight is F8_E4M3; only F32, BF16, F16",
        ),
        ("int4 by groups", {"weight_shape": None}, rf"lacks {QUERY}\.weight_shape"),
        (
            "int4 by groups",
            {"weight_scale": torch.ones(64, 3)},
            rf"{QUERY}\.weight_scale has shape \(64, 3\)",
        ),
        ("int8 by channels", {"weight": torch.zeros(64, 64)}, rf"tensor {QUERY}\.weight is F32; only I8 "),
        (
            "fp8 by blocks",
            {"weight": torch.zeros(64, 64).to(torch.float8_e5m2)},
            rf"tensor {QUERY}\.weight is F8_E5M2; only F8_E4M3",
        ),
        ("fp8 by blocks", {"weight_scale_inv": torch.ones(1, 2)}, rf"{QUERY}\.weight_scale_inv has shape"),
        ("mxfp4", {"weight_scales": torch.ones(64, 2)}, rf"{QUERY}\.weight_scales is F32; only U8"),
        ("mxfp4", {"weight_scales": None}, rf"lacks {QUERY}\.weight_scales"),
    ],
)
def test_a_damaged_directory_is_refused_by_the_tensor(
    name: str, parts: dict[str, Tensor | None], sentence: str, tmp_path: Path
) -> None:
    packed, _ = save_packed(tmp_path, PACKINGS[name])
    with pytest.raises(InvalidRequest, match=sentence):
        load(edit(packed, **parts))


@pytest.mark.parametrize(
    ("name", "arithmetic"), [("fp8 by blocks", "float32"), ("int8 by channels", "int8"), ("mxfp4", "int8")]
)
def test_the_work_of_a_step_is_counted_in_what_the_weights_are_held_in(
    name: str, arithmetic: str, tmp_path: Path
) -> None:
    packed, _ = save_packed(tmp_path, PACKINGS[name])
    model = load_model_config(packed)
    layout = KvLayout(model.num_layers, model.num_kv_heads, model.head_dim, "float32")
    assert work_of(EngineConfig(str(packed)), model, layout).arithmetic == arithmetic


def test_an_architecture_that_is_not_known_is_refused_before_its_packing(tmp_path: Path) -> None:
    packed, _ = save_packed(tmp_path, PACKINGS["mxfp4"])
    config = json.loads((packed / "config.json").read_text("utf-8"))
    (packed / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    with pytest.raises(InvalidRequest, match="architecture 'BertForMaskedLM' is not supported"):
        load(packed)
