"""Whole checkpoints: packed ones read from a directory, plain ones quantized at load."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from shared.engine.loading.config import load_model_config
from shared.engine.loading.layers import DenseMlp, ModelWeights
from shared.engine.loading.linear import DenseLinear, Linear, QuantLinear, as_stored, dequantize
from shared.engine.loading.weights import load_weights
from shared.errors import InvalidRequest
from tests.support.engine import make_engine, oracle, oracle_logits, prompts, save_random_model
from tests.support.packed import Codes, awq_tensors, gptq_tensors, quantize_plainly

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
}
QUERY = "model.layers.0.self_attn.q_proj"


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to pack a checkpoint."""

    fields: dict[str, Any]
    quantize: Callable[[Tensor], Codes]
    pack: Callable[[str, Codes], dict[str, Tensor]]


def _reordered(size: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(2))


def _gptq(bits: int, group_size: int, version: int = 1, **fields: Any) -> Kind:
    form = {"quant_method": "gptq", "bits": bits, "group_size": group_size, "sym": False, "desc_act": False}
    form |= {"checkpoint_format": "gptq_v2"} if version == 2 else {}
    return Kind(
        form | fields,
        lambda weight: quantize_plainly(weight, bits, group_size),
        lambda module, codes: gptq_tensors(module, codes, version),
    )


KINDS = {
    "gptq4": _gptq(4, 32),
    "gptq8": _gptq(8, 32, sym=True),
    "gptq4-v2": _gptq(4, 64, version=2),
    "gptq4-rows": _gptq(4, -1),
    "awq": Kind(
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
        lambda weight: quantize_plainly(weight, 4, 32),
        awq_tensors,
    ),
    "gptq4-reordered": Kind(
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": True},
        lambda weight: quantize_plainly(weight, 4, 32, order=_reordered(weight.shape[1])),
        gptq_tensors,
    ),
}
QUANTIZED = [name for name in KINDS if name != "gptq4-reordered"]


def pack(folder: Path, kind: Kind, *, skip: str = "", **shape: Any) -> tuple[Path, Path]:
    """A packed checkpoint, and the dense one that holds what it stands for. `skip` stays dense."""
    plain = save_random_model(folder / "dense", **{**SHAPE, **shape})
    dense = load_file(plain / "model.safetensors")
    packed: dict[str, Tensor] = {}
    for name, tensor in dense.items():
        module = name.removesuffix(".weight")
        if not name.endswith("_proj.weight") or (skip and skip in name):
            packed[name] = tensor
            continue
        codes = kind.quantize(tensor)
        packed |= kind.pack(module, codes)
        dense[name] = codes.weight().float()
    save_file(dense, plain / "model.safetensors")
    config = json.loads((plain / "config.json").read_text("utf-8"))
    (folder / "packed").mkdir()
    (folder / "packed" / "config.json").write_text(json.dumps(config | {"quantization_config": kind.fields}))
    save_file(packed, folder / "packed" / "model.safetensors")
    return folder / "packed", plain


def edit(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def load(folder: Path, dtype: str = "auto", **fields: Any) -> ModelWeights:
    return load_weights(folder, load_model_config(folder, dtype), torch.device("cpu"), **fields)


def linears(weights: ModelWeights) -> Iterator[Linear]:
    for layer in weights.layers:
        assert isinstance(layer.mlp, DenseMlp)
        yield from map(as_stored, (layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down))


def matrix(linear: Linear) -> Tensor:
    return linear.weight if isinstance(linear, DenseLinear) else dequantize(linear, torch.float32)


# --- packed checkpoints ---


@pytest.mark.parametrize("name", KINDS)
def test_a_packed_checkpoint_holds_exactly_the_dense_weights_it_stands_for(name: str, tmp_path: Path) -> None:
    packed, dense = pack(tmp_path, KINDS[name])
    for ours, theirs in zip(linears(load(packed)), linears(load(dense)), strict=True):
        assert isinstance(ours, QuantLinear) == (name in QUANTIZED)
        assert torch.equal(matrix(ours), matrix(theirs))


@pytest.mark.parametrize("name", QUANTIZED)
def test_logits_of_a_packed_checkpoint_are_near_transformers_on_its_dense_weights(
    name: str, tmp_path: Path
) -> None:
    packed, dense = pack(tmp_path, KINDS[name])
    ids = prompts(1, 97, longest=40)[0]
    ours, theirs = make_engine(packed).logits(ids), oracle_logits(oracle(dense), ids)
    # What is left is the quantization of the activations.
    assert (ours - theirs).square().mean() < 2e-3 * theirs.square().mean()


def test_logits_of_a_reordered_checkpoint_are_those_of_transformers_on_its_dense_weights(
    tmp_path: Path,
) -> None:
    packed, dense = pack(tmp_path, KINDS["gptq4-reordered"])
    ids = prompts(1, 97, longest=40)[0]
    assert (make_engine(packed).logits(ids) - oracle_logits(oracle(dense), ids)).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["gptq4", "awq"])
@pytest.mark.parametrize("skip", ["k_proj", "mlp", "layers.1"])
def test_modules_that_are_not_packed_are_read_as_they_are(name: str, skip: str, tmp_path: Path) -> None:
    packed, dense = pack(tmp_path, KINDS[name], skip=skip)
    for ours, theirs in zip(linears(load(packed)), linears(load(dense)), strict=True):
        assert torch.equal(matrix(ours), matrix(theirs))


def test_biases_of_packed_modules_are_kept(tmp_path: Path) -> None:
    packed, _ = pack(tmp_path, KINDS["gptq4"], attention_bias=True)
    stored = load_file(packed / "model.safetensors")
    names = [f"model.layers.0.self_attn.{part}_proj.bias" for part in "qkv"]
    bias = as_stored(load(packed).layers[0].qkv).bias
    assert bias is not None
    assert torch.equal(bias, torch.cat([stored[name] for name in names]))


def test_biases_of_zeros_that_the_architecture_does_not_have_are_ignored(tmp_path: Path) -> None:
    packed, _ = pack(tmp_path, KINDS["gptq4"])
    edit(packed, lambda tensors: tensors.update({f"{QUERY}.bias": torch.zeros(64).half()}))
    assert as_stored(load(packed).layers[0].qkv).bias is None


def test_a_packed_tensor_that_is_missing_is_named(tmp_path: Path) -> None:
    packed, _ = pack(tmp_path, KINDS["awq"])
    with pytest.raises(InvalidRequest, match=rf"lacks {QUERY}\.scales"):
        load(edit(packed, lambda tensors: tensors.__delitem__(f"{QUERY}.scales")))


def test_a_packed_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    packed, _ = pack(tmp_path, KINDS["awq"])
    wrong = torch.zeros((64, 4), dtype=torch.int32)
    with pytest.raises(InvalidRequest, match=rf"{QUERY}\.qweight has shape \(64, 4\)"):
        load(edit(packed, lambda tensors: tensors.update({f"{QUERY}.qweight": wrong})))


def test_a_packed_tensor_of_another_dtype_is_named(tmp_path: Path) -> None:
    packed, _ = pack(tmp_path, KINDS["awq"])
    wrong = torch.zeros((64, 8), dtype=torch.int64)
    with pytest.raises(InvalidRequest, match=rf"{QUERY}\.qweight is I64"):
        load(edit(packed, lambda tensors: tensors.update({f"{QUERY}.qweight": wrong})))


# --- plain checkpoints, quantized at load ---


@pytest.mark.parametrize(("quantization", "bits", "group"), [("int8", 8, 128), ("int4", 4, 64)])
def test_all_linears_of_the_layers_are_quantized_at_load(
    quantization: str, bits: int, group: int, tmp_path: Path
) -> None:
    weights = load(save_random_model(tmp_path, **SHAPE), quantization=quantization)
    for linear in linears(weights):
        assert isinstance(linear, QuantLinear)
        assert (linear.bits, linear.group) == (bits, group)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_head_is_quantized_to_int8(quantization: str, tied: bool, tmp_path: Path) -> None:
    folder = save_random_model(tmp_path, **SHAPE, tie_word_embeddings=tied)
    head = load(folder, quantization=quantization).head
    assert isinstance(head, QuantLinear)
    assert (head.bits, head.group) == (8, 128)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_the_embedding_of_an_untied_model_stays_as_it_is(quantization: str, tmp_path: Path) -> None:
    folder = save_random_model(tmp_path, **SHAPE)
    stored = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(load(folder, quantization=quantization).embedding, stored)


def test_the_group_can_be_chosen(tmp_path: Path) -> None:
    weights = load(save_random_model(tmp_path, **SHAPE), quantization="int4", quant_group=32)
    assert {linear.group for linear in linears(weights) if isinstance(linear, QuantLinear)} == {32}


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_damaged_checkpoint_is_refused_at_load(quantization: str, tmp_path: Path) -> None:
    folder = save_random_model(tmp_path, **SHAPE)
    edit(folder, lambda tensors: tensors[f"{QUERY}.weight"].__setitem__((3, 5), float("nan")))
    with pytest.raises(InvalidRequest, match="holds weights that are not finite"):
        load(folder, quantization=quantization)


@pytest.mark.parametrize(("quantization", "bound"), [("int8", 1e-3), ("int4", 0.15)])
def test_logits_of_a_quantized_model_are_near_those_of_the_plain_one(
    quantization: str, bound: float, tmp_path: Path
) -> None:
    folder = save_random_model(tmp_path, **SHAPE)
    ids = prompts(1, 97, longest=40)[0]
    theirs = oracle_logits(oracle(folder), ids)
    ours = make_engine(folder, quantization=quantization).logits(ids)
    assert (ours - theirs).square().mean() < bound * theirs.square().mean()
