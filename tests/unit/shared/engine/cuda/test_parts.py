"""fp8 products, the mirrored pool, and what is refused on a machine without a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.engine.batch import Batch, Span
from shared.engine.cuda.build import load_on_device
from shared.engine.cuda.device import check_device, check_fp8
from shared.engine.cuda.fp8_linear import to_fp8
from shared.engine.cuda.kv_pool import MirroredKvPool
from shared.engine.cuda.model import CudaModel
from shared.engine.engine_config import EngineConfig
from shared.engine.loading.config import load_model_config
from shared.engine.loading.linear import DenseLinear
from shared.engine.loading.weights import load_weights
from shared.engine.memory.kv_pool import KvLayout
from shared.errors import InvalidRequest
from tests.support.engine import save_random_model, save_shape
from tests.support.engine_families import SHAPES

LAYOUT = KvLayout(2, 2, 8, "float32")


# --- fp8 ---


def test_fp8_products_are_within_the_formats_rounding_of_the_dense_ones() -> None:
    torch.manual_seed(0)
    dense = DenseLinear(torch.randn(32, 64).bfloat16(), torch.randn(32).bfloat16())
    rows = torch.randn(5, 64).bfloat16()
    error = (to_fp8(dense)(rows) - dense(rows)).float()
    assert error.norm() < 0.05 * dense(rows).float().norm()


def test_fp8_scales_are_per_output_and_per_row() -> None:
    weight = torch.ones(16, 16)
    weight[3] *= 1000
    rows = torch.ones(2, 16)
    rows[1] /= 1000
    out = to_fp8(DenseLinear(weight))(rows)
    torch.testing.assert_close(out[:, 3], torch.tensor([16000.0, 16.0]))
    torch.testing.assert_close(out[:, 4], torch.tensor([16.0, 0.016]))


def test_zeros_stay_zeros_in_fp8() -> None:
    assert not to_fp8(DenseLinear(torch.zeros(16, 16)))(torch.zeros(2, 16)).any()


def test_a_map_with_odd_sides_stays_dense() -> None:
    assert isinstance(to_fp8(DenseLinear(torch.zeros(16, 24))), DenseLinear)


def test_quantization_fp8_rounds_the_layers_and_keeps_the_head(tmp_path: Path) -> None:
    save_random_model(tmp_path, hidden_size=48, intermediate_size=96)
    config = EngineConfig(str(tmp_path), dtype="bfloat16", quantization="fp8")
    model_config = load_model_config(tmp_path, "bfloat16")
    weights = load_on_device(config, model_config, torch.device("cpu"), None)
    kinds = [type(linear).__name__ for linear in (weights.layers[0].qkv, weights.head)]
    assert kinds == ["Fp8Linear", "DenseLinear"]


# --- mirror ---


def test_what_arrives_in_the_mirror_is_taken_in_by_the_device() -> None:
    pool = MirroredKvPool(LAYOUT, 4, device="cpu")
    pool.block_view(1, 2)[:] = bytes([5]) * LAYOUT.layer_block_bytes
    assert not pool.data[1, 2].any()
    pool.take_in([2])
    assert (pool.data[1, 2] == 5).all()


def test_a_copied_block_is_copied_in_the_mirror_too() -> None:
    pool = MirroredKvPool(LAYOUT, 4, device="cpu")
    pool.block_view(0, 1)[:] = bytes([5]) * LAYOUT.layer_block_bytes
    pool.take_in([1])
    pool.copy_block(1, 3)
    assert (pool.data[0, 3] == 5).all()
    assert bytes(pool.block_view(0, 3)) == bytes(pool.block_view(0, 1))


def test_content_put_back_from_elsewhere_is_published() -> None:
    pool = MirroredKvPool(LAYOUT, 4, memoryview(bytearray(4 * LAYOUT.block_bytes)), device="cpu")
    content = torch.full((LAYOUT.num_layers, 2, LAYOUT.layer_block_bytes), 5, dtype=torch.uint8)
    pool.write([3, 1], content)
    assert torch.equal(pool.read([3, 1]), content)
    assert (
        bytes(pool.block_view(1, 3)) == bytes(pool.block_view(0, 1)) == bytes([5]) * LAYOUT.layer_block_bytes
    )


def mirrored_model(folder: Path, buffer: memoryview | None) -> tuple[CudaModel, MirroredKvPool]:
    save_random_model(folder, num_hidden_layers=2)
    config = load_model_config(folder)
    layout = KvLayout.of(config, "auto")
    pool = MirroredKvPool(layout, 4, buffer, device="cpu")
    return CudaModel(config, load_weights(folder, config, torch.device("cpu")), pool, 64, graph_rows=2), pool


def pool_bytes(folder: Path) -> int:
    save_random_model(folder, num_hidden_layers=2)
    return 4 * KvLayout.of(load_model_config(folder), "auto").block_bytes


def test_a_listener_finds_the_layers_kv_in_the_buffer(tmp_path: Path) -> None:
    buffer = memoryview(bytearray(pool_bytes(tmp_path)))
    model, pool = mirrored_model(tmp_path, buffer)
    seen: list[bool] = []
    batch = Batch(
        [1, 2],
        [Span(0, 2, [[3]])],
        [1],
        lambda layer: seen.append(bytes(pool.block_view(layer, 3)) == bytes(pool.data[layer, 3].numpy())),
    )
    model.forward(batch)
    assert seen == [True, True]


def test_steps_without_listeners_are_published_too(tmp_path: Path) -> None:
    buffer = memoryview(bytearray(pool_bytes(tmp_path)))
    model, pool = mirrored_model(tmp_path, buffer)
    model.forward(Batch([1, 2], [Span(15, 2, [[3, 1]])], [1]))
    for layer in range(2):
        for block in (3, 1):
            assert bytes(pool.block_view(layer, block)) == bytes(pool.data[layer, block].numpy())


def test_without_a_buffer_nothing_is_copied_to_the_mirror(tmp_path: Path) -> None:
    model, pool = mirrored_model(tmp_path, None)
    model.forward(Batch([1], [Span(0, 1, [[3]])], [0]))
    assert not any(pool.memory)


# --- refusals ---


def test_a_part_that_device_cuda_does_not_compute_is_refused_by_name(tmp_path: Path) -> None:
    config = replace(load_model_config(save_random_model(tmp_path)), attention_sinks=True)
    with pytest.raises(InvalidRequest, match="has attention sinks, which device cuda does not compute"):
        check_device(EngineConfig(str(tmp_path), device="cuda"), config)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_device_cuda_without_a_gpu_is_refused_with_what_to_do(tmp_path: Path) -> None:
    save_random_model(tmp_path)
    with pytest.raises(InvalidRequest, match=r"device cuda: .*use device cpu"):
        check_device(EngineConfig(str(tmp_path), device="cuda"), load_model_config(tmp_path))


@pytest.mark.parametrize(
    ("dtype", "fields", "sentence"),
    [
        ("float32", {}, "set dtype bfloat16"),
        ("bfloat16", {"deterministic": True}, "products depend on the batch"),
    ],
)
def test_what_fp8_weights_cannot_go_with_is_refused(
    tmp_path: Path, dtype: str, fields: dict[str, Any], sentence: str
) -> None:
    save_random_model(tmp_path)
    config = EngineConfig(str(tmp_path), quantization="fp8", **fields)
    with pytest.raises(InvalidRequest, match=sentence):
        check_fp8(config, load_model_config(tmp_path, dtype))


@pytest.mark.parametrize("name", ["cohere2", "granite", "ministral3", "deepseek v3"])
def test_what_the_kernels_do_not_compute_is_refused_by_name(name: str, tmp_path: Path) -> None:
    config = EngineConfig(str(tmp_path), device="cuda")
    with pytest.raises(InvalidRequest, match="which device cuda does not compute; use device cpu"):
        check_device(config, load_model_config(save_shape(tmp_path, SHAPES[name])))
