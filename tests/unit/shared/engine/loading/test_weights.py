from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from shared.engine import Engine, EngineConfig, load_model_config
from shared.engine.loading.layers import DenseMlp, MoeMlp
from shared.engine.loading.linear import DenseLinear, QuantLinear
from shared.engine.loading.weights import WeightReader, load_weights
from shared.errors import InvalidRequest, NotFound
from tests.support.engine import save_random_model, save_shape
from tests.support.engine_families import SHAPES

Edit = Callable[[dict[str, Tensor]], None]
QUERY = "model.layers.1.self_attn.q_proj.weight"
CPU = torch.device("cpu")


def load(folder: Path) -> Engine:
    return Engine(EngineConfig(str(folder), kv_blocks=4))


def edit(folder: Path, change: Edit) -> Path:
    save_random_model(folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=f"lacks {QUERY}"):
        load(edit(tmp_path, lambda tensors: tensors.__delitem__(QUERY)))


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"holds model\.extra"):
        load(edit(tmp_path, lambda tensors: tensors.update({"model.extra": torch.zeros(2)})))


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=rf"{QUERY} has shape \(2, 3\), config.json says \(48, 48\)"):
        load(edit(tmp_path, lambda tensors: tensors.update({QUERY: torch.zeros(2, 3)})))


def test_an_integer_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is I8; only F32"):
        load(edit(tmp_path, lambda tensors: tensors.update({QUERY: torch.zeros(48, 48, dtype=torch.int8)})))


def test_old_rope_buffers_are_ignored(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    load(edit(tmp_path, lambda tensors: tensors.update({name: torch.zeros(4)})))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    save_random_model(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InvalidRequest, match="damaged"):
        load(tmp_path)


def test_a_directory_without_safetensors_is_not_found(tmp_path: Path) -> None:
    save_random_model(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(NotFound, match="only safetensors"):
        load(tmp_path)


def test_a_missing_shard_is_not_found(tmp_path: Path) -> None:
    save_random_model(tmp_path, save_options={"max_shard_size": "20KB"})
    next(tmp_path.glob("model-00002-*.safetensors")).unlink()
    with pytest.raises(NotFound, match="model-00002"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", 5])
def test_an_index_may_only_name_files_beside_it(name: object, tmp_path: Path) -> None:
    save_random_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(InvalidRequest, match="not a file beside it"):
        load(tmp_path)


def test_a_damaged_index_is_refused(tmp_path: Path) -> None:
    save_random_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(InvalidRequest, match="weight_map"):
        load(tmp_path)


def test_loading_reports_every_layer(tmp_path: Path) -> None:
    model_dir = save_random_model(tmp_path)
    seen: list[tuple[int, int]] = []
    config = EngineConfig(str(model_dir), kv_blocks=8)
    engine = Engine(config, on_loaded=lambda *at: seen.append(at))
    total = engine.model_config.num_layers
    assert seen == [(layer, total) for layer in range(1, total + 1)]


def test_files_are_not_mapped_once_a_layer_is_read(tmp_path: Path) -> None:
    """What a mapping has read of a file counts as the process's memory for as long as it is open."""
    folder = save_random_model(tmp_path)
    reader = WeightReader(folder, load_model_config(folder), CPU)
    reader.layer(0)
    assert str(folder / "model.safetensors") not in Path("/proc/self/maps").read_text()


def test_a_tied_head_shares_the_memory_of_the_embedding(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path, tie_word_embeddings=True)
    weights = load_weights(folder, load_model_config(folder), CPU)
    assert isinstance(weights.head, DenseLinear)
    assert weights.head.weight is weights.embedding


@pytest.mark.parametrize(("quantization", "bits"), [("int8", 8), ("int4", 4)])
def test_every_matrix_but_embedding_and_router_is_quantized_when_asked(
    quantization: str, bits: int, tmp_path: Path
) -> None:
    folder = save_shape(tmp_path, SHAPES["qwen3 moe, some layers dense"])
    weights = load_weights(folder, load_model_config(folder), CPU, quantization=quantization, quant_group=32)
    assert isinstance(weights.head, QuantLinear)
    assert (weights.embedding.dtype, weights.embedding.shape) == (torch.float32, (97, 48))
    mlps: list[DenseMlp] = []
    for layer in weights.layers:
        assert isinstance(layer.qkv, QuantLinear)
        assert isinstance(layer.output, QuantLinear)
        mlps += layer.mlp.experts if isinstance(layer.mlp, MoeMlp) else [layer.mlp]
    for matrix in (matrix for mlp in mlps for matrix in (mlp.gate_up, mlp.down)):
        assert isinstance(matrix, QuantLinear)
        assert (matrix.bits, matrix.group) == (bits, 32)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    folder = save_shape(tmp_path, SHAPES["mixtral"])
    name = "model.layers.2.block_sparse_moe.experts.4.w3.weight"
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InvalidRequest, match=f"lacks {name}"):
        load(folder)
