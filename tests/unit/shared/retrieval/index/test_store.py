"""Generations of an index on disk, with vectors that need no model."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from shared.errors import ChecksumMismatch, InvalidRequest
from shared.retrieval.index import nearest, store
from shared.retrieval.index.manifest import FILE_NAMES, FORMAT, read_pointer
from shared.retrieval.index.nearest import HNSW, IVF_PQ
from shared.retrieval.index.store import open_generation
from tests.support.killed import killed_at
from tests.support.small_index import SMALL_INDEX_MODEL, save_small_index


def texts_of(folder: Path) -> list[str]:
    generation = open_generation(folder, SMALL_INDEX_MODEL)
    assert generation is not None
    return [generation.index.table.passage(row).text for row in range(len(generation.index))]


def generations(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "generations").iterdir())


def test_an_index_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert open_generation(tmp_path, SMALL_INDEX_MODEL) is None
    assert save_small_index(tmp_path, "One gate.", "Zwei Öfen \ud800.", "") == 1
    generation = open_generation(tmp_path, SMALL_INDEX_MODEL)
    assert generation is not None
    index = generation.index
    assert [index.table.passage(row).text for row in range(3)] == ["One gate.", "Zwei Öfen \ud800.", ""]
    hit = index.hit(1, 0.5)
    assert (hit.source, hit.start, hit.end, hit.page) == ("a.md § Part 1", 10, 19, 2)
    assert index.table.file_of(2).metadata == (("lang", "en"),)
    assert np.array_equal(index.vectors, np.eye(3, 8, dtype=np.float32))
    assert index.lexical.search(["öfen"], 1)[1].tolist() == [[1]]


def test_nobody_but_its_owner_reads_an_index_whatever_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        save_small_index(tmp_path, "One gate.")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()}
    assert {"current", "manifest.json"} < modes.keys()
    assert set(modes.values()) == {0o600}
    folders = [path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_dir()]
    assert folders == [0o700, 0o700]


def test_the_newest_generation_counts_and_older_ones_go(tmp_path: Path) -> None:
    save_small_index(tmp_path, "old")
    save_small_index(tmp_path, "new")
    assert texts_of(tmp_path) == ["new"]
    assert generations(tmp_path) == ["00000002"]


def test_what_is_open_stays_until_it_is_let_go_of(tmp_path: Path) -> None:
    save_small_index(tmp_path, "old")
    opened = open_generation(tmp_path, SMALL_INDEX_MODEL)
    assert opened is not None
    save_small_index(tmp_path, "new")
    assert generations(tmp_path) == ["00000001", "00000002"]
    assert opened.index.table.passage(0).text == "old"
    del opened
    assert generations(tmp_path) == ["00000001", "00000002"]
    save_small_index(tmp_path, "newest")
    assert generations(tmp_path) == ["00000003"]


@pytest.mark.parametrize("name", [*FILE_NAMES, "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "remove"])
def test_damage_is_found_out(tmp_path: Path, name: str, damage: str) -> None:
    save_small_index(tmp_path, "One gate.", "two")
    path = tmp_path / "generations" / "00000001" / name
    data = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        flipped = data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]
        path.write_bytes({"flip": flipped, "cut": data[:-1], "longer": data + b" "}[damage])
    with pytest.raises(ChecksumMismatch):
        open_generation(tmp_path, SMALL_INDEX_MODEL)


@pytest.mark.parametrize("written", [b"", b"{}", b"[1]", b'{"format": 3, "generation": "x"}', b" " * 70_000])
def test_a_damaged_pointer_is_found_out(tmp_path: Path, written: bytes) -> None:
    save_small_index(tmp_path, "text")
    (tmp_path / "current").write_bytes(written)
    with pytest.raises(ChecksumMismatch, match="current"):
        open_generation(tmp_path, SMALL_INDEX_MODEL)


def test_an_index_of_another_format_is_none(tmp_path: Path) -> None:
    save_small_index(tmp_path, "text")
    pointer = json.loads((tmp_path / "current").read_text())
    (tmp_path / "current").write_text(json.dumps(pointer | {"format": FORMAT + 1}))
    assert open_generation(tmp_path, SMALL_INDEX_MODEL) is None


def test_vectors_of_another_model_and_terms_of_other_rules_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_small_index(tmp_path, "text")
    with pytest.raises(InvalidRequest, match=r"made by another embedding model \(model/256, this is other\)"):
        open_generation(tmp_path, "other")
    monkeypatch.setattr(store, "WORDS_FORMAT", "other")
    with pytest.raises(InvalidRequest, match=r"terms .* made by other rules"):
        open_generation(tmp_path, SMALL_INDEX_MODEL)


@pytest.mark.parametrize("kind", [HNSW, IVF_PQ])
def test_what_finds_vectors_is_kept_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(nearest, "kind_for", lambda _vectors: kind)
    save_small_index(tmp_path, *(f"text {number}" for number in range(64)))
    monkeypatch.undo()
    generation = open_generation(tmp_path, SMALL_INDEX_MODEL)
    assert generation is not None
    assert generation.manifest.nearest == generation.index.nearest.kind == kind
    hits = generation.index.search(np.eye(8, dtype=np.float32)[[3]], 1)[0]
    assert [(hit.text, hit.score) for hit in hits] == [("text 3", 1.0)]


def test_nothing_is_pickled(tmp_path: Path) -> None:
    save_small_index(tmp_path, "text")
    generation = tmp_path / "generations" / "00000001"
    assert sorted(path.name for path in generation.iterdir()) == sorted([*FILE_NAMES, "manifest.json"])
    for path in generation.glob("*.npy"):
        np.load(path, allow_pickle=False)


def test_whoever_is_killed_while_it_saves_leaves_the_old_index_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_small_index(tmp_path, "old")
    call = 0
    seen: list[list[str]] = []
    while killed_at(call, monkeypatch, lambda: save_small_index(tmp_path, "new", "text")):
        seen.append(texts_of(tmp_path))
        call += 1
    assert seen[0] == ["old"]
    assert seen[-1] == ["new", "text"]
    assert all(texts in (["old"], ["new", "text"]) for texts in seen)
    assert call > 10
    save_small_index(tmp_path, "after")
    pointer = read_pointer(tmp_path)
    assert pointer is not None
    assert generations(tmp_path) == [f"{pointer.generation:08}"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "generations"]


def test_readers_beside_a_writer_see_whole_states_alone(tmp_path: Path) -> None:
    save_small_index(tmp_path, "0", "same 0")
    seen: list[list[str]] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(texts_of(tmp_path))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 6):
        save_small_index(tmp_path, f"{number}", f"same {number}")
    done.set()
    reader.join()
    assert all(second == f"same {first}" for first, second in seen)
