"""What a checkpoint's digest covers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import save_file

from shared.engine.loading.checkpoint_digest import WHOLE_FILE_BYTES, checkpoint_digest
from shared.errors import NotFound

LARGE_BYTES = 4 * WHOLE_FILE_BYTES


def write(folder: Path, nbytes: int = 64, name: str = "model.safetensors", tensor: str = "weight") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    save_file({tensor: torch.zeros(nbytes, dtype=torch.uint8)}, folder / name)
    return folder


def flip(folder: Path, place: int, length: int = 1) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(place)
        file.write(b"\xff" * length)


CHANGES: dict[str, Callable[[Path], object]] = {
    "configuration": lambda folder: (folder / "config.json").write_text('{"a": 1}'),
    "a tensor's name": lambda folder: write(folder, LARGE_BYTES, tensor="weighs"),
    "the size": lambda folder: write(folder, LARGE_BYTES + 1),
    "the last byte": lambda folder: flip(folder, (folder / "model.safetensors").stat().st_size - 1),
    "a stretch in the middle": lambda folder: flip(folder, LARGE_BYTES // 2, 8192),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_checkpoint_has_another_digest(change: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", LARGE_BYTES)
    before = checkpoint_digest(folder)
    assert checkpoint_digest(write(tmp_path / "other place", LARGE_BYTES)) == before
    CHANGES[change](folder)
    assert checkpoint_digest(folder) != before


def test_every_byte_of_a_small_file_counts(tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    size = (folder / "model.safetensors").stat().st_size
    digests = {checkpoint_digest(folder)}
    for place in range(size - 64, size):
        flip(folder, place)
        digests.add(checkpoint_digest(folder))
    assert len(digests) == 65


@pytest.mark.parametrize("place", ["metadata", "a weight"])
def test_the_header_and_the_weights_of_a_long_gguf_file_count(place: str, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    writer = GGUFWriter(file, "llama")
    writer.add_string("general.name", "name")
    writer.add_tensor("weight", np.zeros(LARGE_BYTES // 4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    before, content = checkpoint_digest(file), file.read_bytes()
    at = content.index(b"name", 60) if place == "metadata" else len(content) - 1
    file.write_bytes(content[:at] + b"x" + content[at + 1 :])
    assert checkpoint_digest(file) != before


def test_all_shards_count(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for name in ("a.safetensors", "b.safetensors"):
        write(folder, name=name, tensor=name)
    weight_map = {"weight_map": {name: name for name in ("a.safetensors", "b.safetensors")}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(weight_map))
    before = checkpoint_digest(folder)
    write(folder, 128, "b.safetensors", "b.safetensors")
    assert checkpoint_digest(folder) != before


def test_a_checkpoint_without_weights_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(NotFound, match="safetensors"):
        checkpoint_digest(tmp_path)
