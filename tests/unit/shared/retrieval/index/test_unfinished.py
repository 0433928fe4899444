from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shared.retrieval.encoders.vectors import Vectors
from shared.retrieval.index import unfinished
from shared.retrieval.index.store import ChunkKeys, chunk_keys
from shared.retrieval.index.unfinished import UNFINISHED_NAME, UnfinishedVectors

MODEL, DIMENSIONS = "model/256", 4


def group(*texts: str) -> tuple[ChunkKeys, Vectors]:
    return chunk_keys(list(texts)), np.full((len(texts), DIMENSIONS), len(texts[0]), np.float32)


def kept(folder: Path, model: str = MODEL, dimensions: int = DIMENSIONS) -> list[tuple[bytes, list[float]]]:
    """All keys with the first number of their vectors."""
    frames = UnfinishedVectors(folder, model, dimensions).read()
    return [(keys.tobytes(), vectors[:, 0].tolist()) for keys, vectors in frames]


def expected(*texts: str) -> tuple[bytes, list[float]]:
    return chunk_keys(list(texts)).tobytes(), [float(len(texts[0]))] * len(texts)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two groups, of which another process knows."""
    vectors = UnfinishedVectors(tmp_path, MODEL, DIMENSIONS)
    assert vectors.read() == []
    vectors.append(*group("a", "b"))
    vectors.append(*group("four"))
    return tmp_path


def test_the_next_process_has_what_was_kept_and_goes_on_behind_it(folder: Path) -> None:
    assert kept(folder) == [expected("a", "b"), expected("four")]
    following = UnfinishedVectors(folder, MODEL, DIMENSIONS)
    following.read()
    following.append(*group("sixsix"))
    assert kept(folder) == [expected("a", "b"), expected("four"), expected("sixsix")]


@pytest.mark.parametrize("cut", [1, 30, 33, 51, 52])
def test_a_group_that_was_cut_off_is_written_over(folder: Path, cut: int) -> None:
    file = folder / UNFINISHED_NAME
    whole = file.read_bytes()
    file.write_bytes(whole[:-cut] if cut > 1 else whole[:-1] + bytes([whole[-1] ^ 1]))
    following = UnfinishedVectors(folder, MODEL, DIMENSIONS)
    assert len(following.read()) == 1
    following.append(*group("sixsix"))
    assert kept(folder) == [expected("a", "b"), expected("sixsix")]


@pytest.mark.parametrize(("model", "dimensions"), [("other", DIMENSIONS), (MODEL, DIMENSIONS + 1)])
def test_vectors_of_another_model_are_none_and_are_written_over(
    folder: Path, model: str, dimensions: int
) -> None:
    assert kept(folder, model, dimensions) == []
    other = UnfinishedVectors(folder, model, dimensions)
    other.read()
    other.append(chunk_keys(["x"]), np.ones((1, dimensions), np.float32))
    assert kept(folder) == []
    assert [values for _, values in kept(folder, model, dimensions)] == [[1.0]]


def test_a_count_that_no_group_has_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished, "MAX_FRAME_VECTORS", 1)
    assert kept(folder) == []
    monkeypatch.setattr(unfinished, "MAX_FRAME_VECTORS", 2)
    assert len(kept(folder)) == 2


def test_nothing_is_left_of_a_finished_indexing(folder: Path) -> None:
    vectors = UnfinishedVectors(folder, MODEL, DIMENSIONS)
    vectors.remove()
    vectors.remove()
    assert list(folder.iterdir()) == []
    vectors.append(*group("a"))
    assert kept(folder) == [expected("a")]
