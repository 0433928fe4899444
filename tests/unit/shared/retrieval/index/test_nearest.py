"""What finds vectors, against all of them compared."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt
import pytest

from shared.errors import ChecksumMismatch
from shared.retrieval.encoders.vectors import Vectors
from shared.retrieval.index import nearest
from shared.retrieval.index.nearest import (
    FLAT,
    HNSW,
    IVF_PQ,
    KINDS,
    NEAREST_NAME,
    ROWS_NAME,
    NearestVectors,
    kind_for,
)

COUNT, DIMENSIONS, K = 6000, 32, 10
MIN_RECALL = 0.95


def unit(rows: npt.NDArray[np.float64]) -> Vectors:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


@pytest.fixture(scope="module")
def vectors() -> Vectors:
    """In clusters, as those of texts are."""
    random = np.random.default_rng(1)
    centers = random.standard_normal((60, DIMENSIONS))
    return unit(centers[np.arange(COUNT) % 60] + 0.6 * random.standard_normal((COUNT, DIMENSIONS)))


@pytest.fixture(scope="module")
def queries(vectors: Vectors) -> Vectors:
    return unit(vectors[:100] + 0.05 * np.random.default_rng(2).standard_normal((100, DIMENSIONS)))


@pytest.fixture(scope="module", params=KINDS)
def index(request: pytest.FixtureRequest, vectors: Vectors) -> NearestVectors:
    return NearestVectors.build(vectors, request.param)


def test_the_nearest_are_found_with_their_cosines(
    index: NearestVectors, vectors: Vectors, queries: Vectors
) -> None:
    cosines = queries @ vectors.T
    scores, rows = index.search(queries, K)
    assert recall(index, vectors, queries) >= (1.0 if index.kind == FLAT else MIN_RECALL)
    np.testing.assert_allclose(scores, np.take_along_axis(cosines, rows, axis=1), atol=1e-6)
    assert (np.diff(scores, axis=1) <= 0).all()


@pytest.mark.parametrize("few", [COUNT, 0], ids=["compared", "searched"])
def test_what_is_not_allowed_is_not_found(
    index: NearestVectors, queries: Vectors, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(nearest, "FLAT_VECTORS", few)
    allowed = np.arange(COUNT) % 60 < 3
    _, rows = index.search(queries[30:33], K, allowed)  # whose nearest are not allowed
    assert (rows >= 0).all()
    assert allowed[rows].all()


def test_where_fewer_are_allowed_than_asked_for_the_rest_is_none(
    index: NearestVectors, queries: Vectors
) -> None:
    allowed = np.zeros(COUNT, np.bool_)
    allowed[:2] = True
    scores, rows = index.search(queries[:1], K, allowed)
    assert sorted(rows[0][rows[0] >= 0].tolist()) == [0, 1]
    assert rows[0, 2:].tolist() == [-1] * (K - 2)
    assert scores[0, 2:].tolist() == [0.0] * (K - 2)


def test_it_is_the_same_one_on_disk(
    tmp_path: Path, index: NearestVectors, vectors: Vectors, queries: Vectors
) -> None:
    index.save(tmp_path)
    loaded = NearestVectors.load(tmp_path, index.kind, vectors)
    (scores, rows), (expected_scores, expected_rows) = loaded.search(queries, K), index.search(queries, K)
    assert np.array_equal(scores, expected_scores)
    assert np.array_equal(rows, expected_rows)


def recall(index: NearestVectors, vectors: Vectors, queries: Vectors) -> float:
    best = np.argsort(-(queries @ vectors.T), axis=1)[:, :K]
    _, rows = index.search(queries, K)
    found = [len(set(one) & set(other)) for one, other in zip(rows.tolist(), best.tolist(), strict=True)]
    return sum(found) / best.size


@pytest.mark.parametrize("kind", KINDS)
def test_it_takes_in_what_comes_and_leaves_out_what_goes(
    tmp_path: Path, vectors: Vectors, queries: Vectors, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(nearest, "kind_for", lambda _vectors: kind)
    first = NearestVectors.build(vectors[:5400])
    turned = np.arange(600, 5400)[::-1]  # of which the queries' own are gone
    origin = np.concatenate([turned, np.full(600, -1)])
    now = np.concatenate([vectors[turned], vectors[5400:]])
    updated = first.updated(origin, now)
    updated.save(tmp_path)
    for index in (updated, NearestVectors.load(tmp_path, kind, now)):
        assert recall(index, now, queries) >= MIN_RECALL
        allowed = np.arange(len(now)) % 2 == 0
        monkeypatch.setattr(nearest, "FLAT_VECTORS", 0)
        assert allowed[index.search(queries, K, allowed)[1]].all()
    assert recall(first, vectors[:5400], queries) >= MIN_RECALL


@pytest.mark.parametrize(
    ("kind", "in_it", "present", "is_worn"),
    [
        (HNSW, 1000, 800, False),
        (HNSW, 1000, 799, True),
        (HNSW, 9000, 9000, False),
        (IVF_PQ, 1000, 799, True),
        (IVF_PQ, 2000, 2000, False),
        (IVF_PQ, 2050, 2050, True),
    ],
)
def test_it_is_made_anew_when_too_much_has_changed(
    vectors: Vectors, kind: str, in_it: int, present: int, is_worn: bool
) -> None:
    built = NearestVectors.build(vectors[:1024], kind)
    assert nearest.is_worn(built._index, in_it, present) is is_worn


@pytest.mark.parametrize("kind", [HNSW, IVF_PQ])
def test_what_has_gone_goes_out_of_the_file_when_it_is_much(
    tmp_path: Path, vectors: Vectors, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(nearest, "kind_for", lambda _vectors: kind)
    half = NearestVectors.build(vectors[:1000]).updated(np.arange(500), vectors[:500])
    half.save(tmp_path)
    assert len(np.load(tmp_path / ROWS_NAME)) == 500


@pytest.mark.parametrize("kind", [HNSW, IVF_PQ])
@pytest.mark.parametrize(
    "rows",
    [
        [*range(63), 62],
        [*range(63), 64],
        [*range(63), -1],
        [*range(63), -2],
        [*range(63)],
        [float(row) for row in range(64)],
    ],
    ids=["twice", "beyond", "none", "negative", "short", "fractions"],
)
def test_rows_that_are_not_those_of_the_vectors_are_refused(
    tmp_path: Path, vectors: Vectors, kind: str, rows: list[float]
) -> None:
    NearestVectors.build(vectors[:64], kind).save(tmp_path)
    np.save(tmp_path / ROWS_NAME, np.array(rows))
    with pytest.raises(ChecksumMismatch, match="of other vectors"):
        NearestVectors.load(tmp_path, kind, vectors[:64])


@pytest.mark.parametrize("kind", [HNSW, IVF_PQ])
def test_a_file_of_other_vectors_is_refused(tmp_path: Path, vectors: Vectors, kind: str) -> None:
    NearestVectors.build(vectors[:500], kind).save(tmp_path)
    with pytest.raises(ChecksumMismatch, match="of other vectors"):
        NearestVectors.load(tmp_path, kind, vectors)
    (tmp_path / NEAREST_NAME).write_bytes(b"no index")
    with pytest.raises(ChecksumMismatch, match="cannot be read"):
        NearestVectors.load(tmp_path, kind, vectors)


def test_their_number_chooses_the_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    edges = (nearest.FLAT_VECTORS, nearest.HNSW_VECTORS)
    assert [kind_for(count + more) for count in edges for more in (-1, 0)] == [FLAT, HNSW, HNSW, IVF_PQ]
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    assert kind_for(nearest.HNSW_VECTORS) == FLAT


@pytest.mark.skipif(not faiss.get_num_gpus(), reason="this faiss sees no GPU (make setup FAISS=faiss-gpu)")
def test_a_gpu_finds_what_the_cpu_finds(vectors: Vectors, queries: Vectors) -> None:
    index = NearestVectors.build(vectors, FLAT)
    scores, rows = index.search(queries, K)
    index._gpu = None
    expected_scores, expected_rows = index.search(queries, K)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
    assert np.array_equal(rows, expected_rows)
