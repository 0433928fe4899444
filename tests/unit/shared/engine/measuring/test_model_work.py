from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from shared.engine import EngineConfig, KvLayout, ModelConfig, load_model_config
from shared.engine.loading.model_config import MoeConfig
from shared.engine.measuring.model_work import StepWork, work_of
from tests.support.engine import save_shape
from tests.support.engine_families import SHAPES


@pytest.fixture
def model(model_dir: Path) -> ModelConfig:
    return load_model_config(model_dir)


def work(model: ModelConfig, quantization: str = "none") -> StepWork:
    engine = EngineConfig("", quantization=quantization)
    return work_of(engine, model, KvLayout.of(model, "auto"))


def matrices(model_dir: Path) -> dict[str, int]:
    """Bytes by name, of the checkpoint itself."""
    tensors = load_file(model_dir / "model.safetensors")
    return {name: tensor.nbytes for name, tensor in tensors.items() if tensor.ndim == 2}


def test_a_step_reads_every_matrix_of_the_checkpoint_but_the_embedding(
    model_dir: Path, model: ModelConfig
) -> None:
    sizes = matrices(model_dir)
    assert work(model).weight_bytes == sum(sizes.values()) - sizes["model.embed_tokens.weight"]
    assert work(model).held_bytes == sum(sizes.values())


@pytest.mark.parametrize("name", ["deepseek v2", "deepseek v3"])
def test_a_model_with_compressed_kv_holds_every_matrix_of_its_checkpoint(name: str, tmp_path: Path) -> None:
    model = load_model_config(save_shape(tmp_path, SHAPES[name]))
    assert work(model).held_bytes == sum(matrices(tmp_path).values())


def test_a_tied_head_is_read_and_held_once(model: ModelConfig) -> None:
    tied = replace(model, tie_word_embeddings=True)
    assert work(tied).weight_bytes == work(model).weight_bytes
    assert work(tied).held_bytes == work(tied).weight_bytes


@pytest.mark.parametrize(("quantization", "bits"), [("int8", 8), ("int4", 4)])
def test_quantized_matrices_count_codes_scales_and_zeros(
    model: ModelConfig, quantization: str, bits: int
) -> None:
    # Rows are 48 or 80 wide: one group of 128; with groups of 64, one or two. The head stays at 8 bits.
    head = 97 * (48 + 3)
    layer = 0
    for rows, columns in ((80, 48), (48, 48), (160, 48), (48, 80)):
        groups = 2 if bits == 4 and columns > 64 else 1
        layer += rows * (columns * bits // 8 + 3 * groups)
    assert work(model, quantization).weight_bytes == 3 * layer + head
    assert work(model, quantization).arithmetic == "int8"


def test_each_sequence_reads_its_own_kv_up_to_the_window(model: ModelConfig) -> None:
    token_bytes = 2 * 3 * 2 * 8 * 4  # K and V, layers, heads, channels, float32
    counted = work(model)
    assert counted.kv_token_bytes == token_bytes
    assert counted.decode_bytes(4, 100) - counted.weight_bytes == 4 * 100 * token_bytes
    windowed = replace(model, layers=(replace(model.layers[0], window_tokens=10), *model.layers[1:]))
    read = work(windowed).decode_bytes(4, 100) - counted.weight_bytes
    assert read == 4 * (10 + 100 + 100) * token_bytes / 3


def test_prefill_counts_every_pair_that_attention_scores(model: ModelConfig) -> None:
    tokens, window = 20, 6
    windowed = replace(model, layers=(replace(model.layers[0], window_tokens=window), *model.layers[1:]))
    pairs = sum(min(row + 1, window) for row in range(tokens)) + 2 * sum(range(tokens + 1))
    counted = work(windowed)
    linear = 2 * (tokens * counted.layer_weights + counted.head_weights)
    assert counted.prefill_operations(tokens) == linear + 4 * pairs * 6 * 8


def test_a_decode_step_computes_every_row_and_its_head(model: ModelConfig) -> None:
    counted = work(model)
    linear = 2 * 4 * (counted.layer_weights + counted.head_weights)
    assert counted.decode_operations(4, 100) == linear + 4 * (4 * 100 * 3) * 6 * 8


def test_a_shared_expert_and_its_gate_are_read_with_every_token(model: ModelConfig) -> None:
    moe = MoeConfig(num_experts=8, experts_per_token=2, intermediate_size=16, normalize=True)
    shared = replace(moe, shared_intermediate_size=20, shared_gate=True)
    alone, beside = (
        work(replace(model, layers=tuple(replace(layer, moe=each) for layer in model.layers)))
        for each in (moe, shared)
    )
    assert beside.weight_bytes - alone.weight_bytes == len(model.layers) * (3 * 20 + 1) * 48 * 4
    assert beside.held_bytes - beside.weight_bytes == alone.held_bytes - alone.weight_bytes


def test_a_sparse_layer_reads_one_tokens_experts_and_holds_them_all(model: ModelConfig) -> None:
    moe = MoeConfig(num_experts=8, experts_per_token=2, intermediate_size=16, normalize=True)
    sparse = replace(model, layers=tuple(replace(layer, moe=moe) for layer in model.layers))
    expert = 3 * 16 * 48 * 4
    assert work(sparse).held_bytes - work(sparse).weight_bytes == 3 * 6 * expert + 97 * 48 * 4
