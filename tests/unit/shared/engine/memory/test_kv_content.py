"""The layout of a worker's KV stands for checkpoint and rotation, and so do the names of its blocks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from transformers import Phi3Config

from shared.blocks.block_hash import BlockHasher
from shared.engine import Engine, EngineConfig, SamplingParams, load_model_config
from shared.engine.backends import build_pool
from shared.engine.memory.kv_pool import KvLayout
from tests.support.engine import save_random_model

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
}


def layout_of(model_dir: Path, **fields: Any) -> KvLayout:
    config = EngineConfig(str(model_dir), **{"kv_blocks": 8, **fields})
    return build_pool(config, load_model_config(model_dir), None).layout


def names_in(model_dir: Path, hasher: BlockHasher | None = None, **fields: Any) -> set[bytes]:
    """Of the blocks of one prompt after an engine has computed it."""
    engine = Engine(EngineConfig(str(model_dir), **{"kv_blocks": 8, **fields}), hasher=hasher)
    engine.admit("a", list(range(20, 53)), 33, SamplingParams(max_tokens=1))
    engine.step()
    engine.check()
    return set(engine.blocks.cached_hashes())


def change_config(model_dir: Path, **fields: Any) -> None:
    path = model_dir / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_the_same_files_in_another_place_have_the_same_layout_and_names(
    model_dir: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(model_dir, tmp_path / "another name")
    assert layout_of(copy).fingerprint() == layout_of(model_dir).fingerprint()
    assert names_in(copy) == names_in(model_dir)
    assert len(names_in(copy)) == 2


def test_other_weights_in_a_directory_of_the_same_name_share_nothing(model_dir: Path, tmp_path: Path) -> None:
    other = save_random_model(tmp_path / model_dir.name, seed=1)
    assert other.name == model_dir.name
    assert (other / "config.json").read_bytes() == (model_dir / "config.json").read_bytes()
    assert layout_of(other).fingerprint() != layout_of(model_dir).fingerprint()
    assert names_in(other).isdisjoint(names_in(model_dir))


def test_another_configuration_of_the_same_weights_shares_nothing(model_dir: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model_dir, tmp_path / "model")
    change_config(other, rms_norm_eps=1e-3)
    assert layout_of(other).fingerprint() != layout_of(model_dir).fingerprint()
    assert names_in(other).isdisjoint(names_in(model_dir))


def test_another_way_to_store_kv_shares_nothing(model_dir: Path) -> None:
    assert layout_of(model_dir, kv_dtype="int8").fingerprint() != layout_of(model_dir).fingerprint()
    assert names_in(model_dir, kv_dtype="int8").isdisjoint(names_in(model_dir))


def test_another_fleet_shares_nothing(model_dir: Path) -> None:
    assert names_in(model_dir, BlockHasher(bytes(32))).isdisjoint(names_in(model_dir))


def test_pools_of_any_size_share_a_plain_rotation(model_dir: Path) -> None:
    assert len({layout_of(model_dir, kv_blocks=blocks).fingerprint() for blocks in (2, 8, 64)}) == 1


def test_pools_on_both_sides_of_a_longrope_s_border_share_nothing(tmp_path: Path) -> None:
    phi3 = save_random_model(
        tmp_path / "phi3", Phi3Config, rope_parameters=LONGROPE, original_max_position_embeddings=64
    )
    short, long = ({layout_of(phi3, kv_blocks=n).fingerprint() for n in sizes} for sizes in ((2, 4), (5, 9)))
    assert len(short) == len(long) == 1
    assert short != long
    assert names_in(phi3, kv_blocks=4).isdisjoint(names_in(phi3, kv_blocks=5))


def test_a_dynamic_rope_is_shared_by_pools_that_stretch_it_alike(tmp_path: Path) -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    llama = save_random_model(tmp_path / "llama", rope_parameters=dynamic, max_position_embeddings=64)
    of_length = [layout_of(llama, kv_blocks=20, max_model_len=length) for length in (40, 64, 80, 96)]
    first, second, third, fourth = (layout.fingerprint() for layout in of_length)
    assert first == second
    assert len({second, third, fourth}) == 3
