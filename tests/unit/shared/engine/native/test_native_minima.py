"""A model whose matrices came out of GGML's blocks: minima, groups of 16, types mixed within a layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest
import torch

from shared.engine.batch import Batch, Model, Span
from shared.engine.cuda.weight_map import map_linears
from shared.engine.loading.config import ModelConfig, load_model_config
from shared.engine.loading.gguf.blocks import read_blocks
from shared.engine.loading.layers import ModelWeights
from shared.engine.loading.linear import CodedLinear, DenseLinear, Linear, LinearMap, as_stored, dequantize
from shared.engine.loading.weights import load_weights
from shared.engine.memory.kv_pool import KvLayout, KvPool
from shared.engine.native.library import library
from shared.engine.native.model import NativeModel
from shared.engine.native.packing import PackedPart, packed_parts
from shared.engine.native.weight_cache import WeightCache, most_parts
from shared.engine.torch_backend.model import TorchModel
from tests.support.engine import logits_by_path, save_random_model
from tests.support.k_quants import K_QUANTS, stored_k_quants

KERNELS = library()
TYPES = ["Q4_1", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]  # 4 and 8 bits with minima, superblocks
PROMPT, BESIDE = list(range(3, 60)), list(range(90, 20, -1))

pytestmark = pytest.mark.skipif(KERNELS is None, reason="the kernels were not built or cannot run here")


def in_blocks(linear: LinearMap, type_name: str) -> Linear:
    """The same shape with codes at random: K-quants have no quantizer in python."""
    assert isinstance(linear, DenseLinear)
    if type_name in K_QUANTS:
        stored = stored_k_quants(type_name, *linear.shape, linear.shape[0])
    else:
        stored = gguf.quants.quantize(linear.weight.numpy(), gguf.GGMLQuantizationType[type_name])
    return read_blocks(torch.from_numpy(stored), type_name, "weight")


def quantized_model(folder: Path, type_name: str) -> tuple[ModelConfig, ModelWeights]:
    """Tied: its head's columns are the embedding."""
    save_random_model(
        folder,
        hidden_size=256,
        intermediate_size=256,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        tie_word_embeddings=True,
    )
    config = load_model_config(folder)
    weights = load_weights(folder, config, torch.device("cpu"))
    weights = map_linears(weights, lambda linear: in_blocks(linear, type_name))
    assert isinstance(weights.head, CodedLinear)
    return config, ModelWeights(
        dequantize(weights.head, torch.float32), weights.layers, weights.final_norm, weights.head
    )


def native(
    config: ModelConfig, weights: ModelWeights, threads: int, cache: Path | None = None
) -> NativeModel:
    assert KERNELS is not None
    kernels = KERNELS

    def pack() -> Iterator[tuple[str, PackedPart]]:
        return packed_parts(
            kernels,
            config,
            iter(weights.layers),
            embedding=None,
            head=as_stored(weights.head),
            final_norm=weights.final_norm,
        )

    parts = (
        None
        if cache is None
        else WeightCache(cache, 1 << 30).load(kernels, "aa" * 16, most_parts(config), pack)
    )
    return NativeModel(
        kernels,
        config,
        dict(pack()) if parts is None else parts,
        pool=KvPool(KvLayout.of(config, "auto"), 64),
        num_positions=128,
        threads=threads,
    )


def whole(model: Model) -> torch.Tensor:
    return model.forward(Batch(PROMPT, [Span(0, len(PROMPT), [range(8)])], range(len(PROMPT)))).clone()


@pytest.mark.thorough(but="Q4_1 | Q5_K | Q6_K")
@pytest.mark.parametrize("type_name", TYPES)
def test_logits_are_those_of_the_torch_backend(type_name: str, tmp_path: Path) -> None:
    config, weights = quantized_model(tmp_path, type_name)
    reference = whole(TorchModel(config, weights, KvPool(KvLayout.of(config, "auto"), 64), 128))
    errors = (whole(native(config, weights, threads=1)) - reference).abs()
    # A value on the border of two numbers may fall to either side here and there.
    assert errors[0].max() <= 1e-3
    assert errors.mean() <= 0.002 * reference.std()


@pytest.mark.thorough(but="1-Q4_1 | 1-Q4_K | 2-Q5_K | 2-Q6_K")
@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_invariant_5_logits_are_bitwise_equal_on_every_path(
    type_name: str, threads: int, tmp_path: Path
) -> None:
    model = native(*quantized_model(tmp_path, type_name), threads=threads)
    by_path = logits_by_path(model, PROMPT, BESIDE)
    assert all(torch.equal(logits, by_path["whole prompt"]) for logits in by_path.values())


@pytest.mark.parametrize("type_name", TYPES)
def test_logits_are_bitwise_those_of_memory_when_the_weights_come_from_a_file(
    type_name: str, tmp_path: Path
) -> None:
    config, weights = quantized_model(tmp_path / "model", type_name)
    expected = whole(native(config, weights, threads=1))
    assert torch.equal(whole(native(config, weights, 1, tmp_path / "cache")), expected)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    nothing = ModelWeights(weights.embedding, (), weights.final_norm, weights.head)  # what is not read again
    assert torch.equal(whole(native(config, nothing, 1, tmp_path / "cache")), expected)
