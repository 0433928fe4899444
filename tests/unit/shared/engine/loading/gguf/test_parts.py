"""Models in several GGUF files: whichever is named, all are read; what does not belong together is said."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf import GGUFWriter

from shared.engine import load_model_config
from shared.engine.loading.checkpoint_digest import checkpoint_digest
from shared.engine.loading.gguf.find_file import find_gguf
from shared.engine.loading.gguf.parts import MAX_PARTS, part_paths, read_header
from shared.engine.loading.weight_files import check_weight_files, weight_files
from shared.errors import InvalidRequest, NotFound
from shared.text.model_source import resolve_model
from tests.support.engine import make_engine, save_shape
from tests.support.engine_families import SHAPES
from tests.support.gguf_files import GgufModel, add_value

IDS = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
PART_TENSORS = 10


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """A model of three layers in several files, and beside their folder the same in one."""
    model = GgufModel.of(save_shape(tmp_path / "hf", SHAPES["llama, llama3 rope"]))  # rope has a tensor, too
    model.tensors = dict(sorted(model.tensors.items()))  # it is in the last part
    model.write(tmp_path / "whole.gguf", tokenizer=IDS)
    (tmp_path / "parts").mkdir()
    model.write(tmp_path / "parts" / "model.gguf", tokenizer=IDS, part_tensors=PART_TENSORS)
    found = sorted((tmp_path / "parts").iterdir())
    assert len(found) >= 3
    return found


@pytest.mark.parametrize("named", ["first", "last", "folder"])
def test_all_parts_are_read_whichever_is_named(named: str, parts: list[Path]) -> None:
    model = {"first": parts[0], "last": parts[-1], "folder": parts[0].parent}[named]
    whole = parts[0].parents[1] / "whole.gguf"
    assert find_gguf(model) == parts[0]
    assert resolve_model(str(model)).path == parts[0]
    assert load_model_config(model) == load_model_config(whole)
    prompt = list(range(3, 40))
    logits = make_engine(model, backend="torch").logits(prompt)
    assert torch.equal(logits, make_engine(whole, backend="torch").logits(prompt))


def test_every_part_is_in_the_digest(parts: list[Path]) -> None:
    before = checkpoint_digest(parts[0])
    assert list(weight_files(parts[0].parent)) == parts
    content = bytearray(parts[-1].read_bytes())
    content[-1] ^= 1
    parts[-1].write_bytes(content)
    assert checkpoint_digest(parts[0]) != before


def test_a_part_that_is_missing_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    with pytest.raises(NotFound, match=f"{parts[1].name} is missing beside {parts[0].name}: all"):
        check_weight_files(parts[0])


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_a_part_that_is_no_file_is_refused_by_name(make: Callable[[Path], None], parts: list[Path]) -> None:
    parts[1].unlink()
    make(parts[1])
    with pytest.raises(InvalidRequest, match=f"{parts[1].name} cannot be used: it is no file; name the GGUF"):
        read_header(parts[0])


def test_a_file_that_cannot_be_reached_is_refused(parts: list[Path]) -> None:
    with pytest.raises(
        InvalidRequest, match=r"model.gguf cannot be used: it cannot be read \(Not a directory\)"
    ):
        read_header(parts[0] / "model.gguf")


def test_parts_in_another_order_are_refused(parts: list[Path], tmp_path: Path) -> None:
    shutil.copy(parts[2], parts[1])
    with pytest.raises(InvalidRequest, match=f"{parts[1].name} cannot be used: it says that it is part 3"):
        read_header(parts[0])


def test_a_part_with_a_tensor_of_another_one_is_refused(parts: list[Path], tmp_path: Path) -> None:
    model = GgufModel.of(tmp_path / "hf")
    model.tensors = dict(sorted(model.tensors.items(), reverse=True))
    (tmp_path / "other").mkdir()
    model.write(tmp_path / "other" / "model.gguf", tokenizer=IDS, part_tensors=PART_TENSORS)
    shutil.copy(tmp_path / "other" / parts[-1].name, parts[-1])
    with pytest.raises(InvalidRequest, match="is in an earlier part, too; download all parts again"):
        read_header(parts[0])


def test_a_number_of_tensors_that_is_not_there_is_refused(parts: list[Path]) -> None:
    key = b"split.tensors.count"
    content = bytearray(parts[0].read_bytes())
    content[content.index(key) + len(key) + 4] += 1  # behind its type
    parts[0].write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"parts hold \d+ tensors, and it says \d+"):
        read_header(parts[0])


def test_a_part_that_is_cut_is_refused_by_name(parts: list[Path]) -> None:
    parts[1].write_bytes(parts[1].read_bytes()[:-64])
    with pytest.raises(InvalidRequest, match=f"{parts[1].name} is damaged: tensor .* would end at byte"):
        read_header(parts[0])


def test_a_part_under_another_name_says_how_it_must_be_called(parts: list[Path]) -> None:
    renamed = parts[0].rename(parts[0].with_name("model.gguf"))
    with pytest.raises(
        InvalidRequest, match=f"one of {len(parts)} parts; name the first, and keep the names"
    ):
        read_header(renamed)


def test_a_whole_model_that_is_named_as_a_part_is_refused(parts: list[Path], tmp_path: Path) -> None:
    named = (tmp_path / "whole.gguf").rename(tmp_path / "whole-00001-of-00003.gguf")
    with pytest.raises(InvalidRequest, match="a whole model, and its name says that it is one of 3 parts"):
        read_header(named)


def test_the_first_part_is_missed_by_name(parts: list[Path]) -> None:
    parts[0].unlink()
    first = find_gguf(parts[-1])
    assert first == parts[0]
    with pytest.raises(NotFound, match=f"{parts[0].name} is missing: all {len(parts)} parts"):
        read_header(first)


@pytest.mark.parametrize("value", ["x" * 100_000, 2**31 + 1, True])
def test_a_count_that_is_none_is_refused_in_a_short_sentence(value: str | int, tmp_path: Path) -> None:
    file = tmp_path / "m-00001-of-00002.gguf"
    writer = GGUFWriter(file, "llama")
    add_value(writer, "split.count", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(InvalidRequest, match="no count") as refused:
        read_header(file)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("name", ["m-00000-of-00003.gguf", "m-00004-of-00003.gguf", "m-00001-of-01025.gguf"])
def test_a_name_that_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=f"up to {MAX_PARTS} parts"):
        part_paths(tmp_path / name)


def test_as_many_parts_as_there_may_be_are_looked_for(tmp_path: Path) -> None:
    assert len(part_paths(tmp_path / f"m-00001-of-{MAX_PARTS:05}.gguf")) == MAX_PARTS
