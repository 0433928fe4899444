"""The vectors nearest to a question's, found with faiss: among all, or among a part of them where there are
many.

flat all are compared: exact hnsw a graph over 8-bit copies (Malkov and Yashunin 2018), from FLAT_VECTORS on
ivf-pq lists of compressed copies (Jégou et al. 2011), from HNSW_VECTORS on: built many times faster

What the last two find is compared once more with the vectors themselves: a score is always the exact cosine.
With a faiss that computes on a GPU, and one to compute on, all are compared there. The last two take in
vectors that come later, and those that go stay in them unfound, until too much has changed (`is_worn`).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Self

import faiss
import numpy as np

from shared.errors import ChecksumMismatch
from shared.retrieval.encoders.vectors import Vectors
from shared.retrieval.index.array_file import mapped_array
from shared.retrieval.index.lexical import Allowed, Scores
from shared.retrieval.index.term_counts import Rows

# Its threads wait for each other by spinning: on cores that others use too, two take 15 times as long as one.
faiss.omp_set_num_threads(1)

FLAT, HNSW, IVF_PQ = "flat", "hnsw", "ivf-pq"
KINDS = (FLAT, HNSW, IVF_PQ)
NEAREST_NAME = "nearest.faiss"
ROWS_NAME = "nearest.npy"
NEAREST_NAMES = (NEAREST_NAME, ROWS_NAME)
"""The parts of kinds that are not flat: faiss' index, and int64 [vectors in it], which row each one is, -1
for one that has gone."""

FLAT_VECTORS = 50_000
HNSW_VECTORS = 200_000

HNSW_LINKS = 32
HNSW_BUILD_BREADTH = 80
HNSW_SEARCH_BREADTH = 128

LISTS_PER_ROOT = 4
"""Lists for each square root of the vectors: 4,000 for a million."""
TRAINING_PER_LIST = 48
PROBED_LISTS = 64
SEED = 7

MAX_GONE_SHARE = 0.2
"""The largest share of gone vectors in an index: with more it is built anew."""
MAX_GROWTH = 2.0
"""Times the vectors that lists were made for: with more they are made anew."""

FEW_SHARE = 0.15
"""The share of all vectors up to which they are gathered: more of them are sooner compared with the others
between them."""

COMPARED_AGAIN = 400
"""Candidates whose cosines are computed exactly; at least twice as many as are asked for."""


def kind_for(vectors: int) -> str:
    """Choose the kind by measured time and recall (tests/bench/README.md)."""
    if vectors < FLAT_VECTORS or faiss.get_num_gpus():
        return FLAT
    return HNSW if vectors < HNSW_VECTORS else IVF_PQ


class NearestVectors:
    """`search` may be called from any one thread at a time. `vectors` [n, dimensions] are of length 1."""

    def __init__(self, kind: str, index: Any, vectors: Vectors, rows: Rows) -> None:
        """Search with `index`, or compare all vectors without one. `rows` [vectors in it]: which row of
        `vectors` each one is, -1 for none."""
        self.kind = kind
        self._index = index
        self._vectors = vectors
        self._rows = rows
        self._present = rows >= 0
        self._is_as_built = np.array_equal(rows, np.arange(len(vectors)))
        self._gpu = _on_gpu(vectors) if kind == FLAT and faiss.get_num_gpus() else None

    @classmethod
    def build(cls, vectors: Vectors, kind: str = "") -> Self:
        """Build it, of the kind that fits their number where none is named."""
        kind = kind or kind_for(len(vectors))
        return cls(kind, _MAKERS[kind](vectors), vectors, np.arange(len(vectors)))

    def updated(self, origin: Rows, vectors: Vectors) -> Self:
        """Return the index of `vectors`: row r of them is row origin[r] here (no two are the same), or new
        where that is -1. This one stays as it is."""
        if self.kind == FLAT or self.kind != kind_for(len(vectors)):
            return self.build(vectors)
        now = np.full(len(self._vectors), -1, np.int64)
        kept, new = np.flatnonzero(origin >= 0), np.flatnonzero(origin < 0)
        now[origin[kept]] = kept
        rows = np.concatenate([np.where(self._present, now[self._rows], -1), new])
        if is_worn(self._index, len(rows), len(vectors)):
            return self.build(vectors)
        index = faiss.clone_index(self._index)
        if len(new):
            index.add(vectors[new])
        return type(self)(self.kind, index, vectors, rows)

    @property
    def description(self) -> str:
        """The kind, and which faiss computes where."""
        return f"{self.kind}, faiss {faiss.__version__} on the {'CPU' if self._gpu is None else 'GPU'}"

    def search(self, queries: Vectors, k: int, allowed: Allowed | None = None) -> tuple[Scores, Rows]:
        """Find for each of `queries` [n, dimensions] its k nearest, best first: cosines and rows [n, k], -1
        where there are no more."""
        k = min(k, len(self._vectors))
        if allowed is not None and (self.kind == FLAT or np.count_nonzero(allowed) <= FLAT_VECTORS):
            few = np.flatnonzero(allowed)
            return self._compared(queries, np.broadcast_to(few, (len(queries), len(few))), k)
        if self.kind == FLAT:
            return self._of_all(queries, k)
        count = min(max(COMPARED_AGAIN, 2 * k), len(self._vectors))
        among = 1 if allowed is None else math.ceil(len(allowed) / max(1, int(allowed.sum())))
        wanted = self._wanted(allowed)
        _, found = self._index.search(queries, count, params=_parameters(self.kind, count, wanted, among))
        return self._compared(queries, np.where(found < 0, -1, self._rows[found]), k)

    def _of_all(self, queries: Vectors, k: int) -> tuple[Scores, Rows]:
        if self._gpu is not None:
            scores, rows = self._gpu.search(queries, k)
        else:
            scores, rows = faiss.knn(queries, self._vectors, k, metric=faiss.METRIC_INNER_PRODUCT)
        return scores, rows

    def _wanted(self, allowed: Allowed | None) -> Allowed | None:
        """[vectors in the index]; None = all."""
        if self._is_as_built:
            return allowed
        return self._present if allowed is None else self._present & allowed[self._rows]

    def save(self, folder: Path) -> None:
        if self.kind != FLAT:
            faiss.write_index(self._index, str(folder / NEAREST_NAME))
            np.save(folder / ROWS_NAME, self._rows, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path, kind: str, vectors: Vectors) -> Self:
        """The caller has compared the checksum of its file. Raises ChecksumMismatch when it is of other
        vectors."""
        if kind == FLAT:
            return cls.build(vectors, FLAT)
        try:
            index = faiss.read_index(str(folder / NEAREST_NAME))
            rows = mapped_array(folder / ROWS_NAME)
        except (RuntimeError, OSError, ValueError) as error:
            raise ChecksumMismatch(f"{folder / NEAREST_NAME} cannot be read") from error
        if (
            index.d != vectors.shape[1]
            or rows.shape != (index.ntotal,)
            or not _is_each_row(rows, len(vectors))
        ):
            raise ChecksumMismatch(f"{folder / NEAREST_NAME} is of other vectors")
        return cls(kind, index, vectors, rows)

    def _compared(self, queries: Vectors, candidates: Rows, k: int) -> tuple[Scores, Rows]:
        """The best k of each query's candidates, by their exact cosines."""
        scores = np.zeros((len(queries), k), np.float32)
        rows = np.full((len(queries), k), -1, np.int64)
        for place, query in enumerate(queries):
            found = candidates[place][candidates[place] >= 0]
            if len(found) > FEW_SHARE * len(self._vectors):
                exact = (self._vectors @ query)[found]
            else:
                exact = self._vectors[found] @ query
            if len(found) > k:
                best = exact >= np.partition(exact, len(found) - k)[len(found) - k]
                found, exact = found[best], exact[best]
            order = np.lexsort((found, -exact))[:k]
            scores[place, : len(order)] = exact[order]
            rows[place, : len(order)] = found[order]
        return scores, rows


def is_worn(index: Any, in_it: int, present: int) -> bool:
    """Return whether an index with so many vectors, of which so many are still there, is better built
    anew."""
    made_for = (index.nlist / LISTS_PER_ROOT) ** 2 if hasattr(index, "nlist") else math.inf
    return in_it - present > MAX_GONE_SHARE * in_it or present > MAX_GROWTH * made_for


def _is_each_row(rows: Rows, count: int) -> bool:
    """Return whether all rows below `count` are among these once, and besides nothing but -1."""
    return rows.dtype == np.int64 and np.array_equal(np.sort(rows[rows != -1]), np.arange(count))


def _hnsw_index(vectors: Vectors) -> Any:
    """Every dimension of a vector of length 1 is within ±1, and most within ±0.2: the quantizer learns the
    range."""
    index = faiss.IndexHNSWSQ(
        vectors.shape[1], faiss.ScalarQuantizer.QT_8bit, HNSW_LINKS, faiss.METRIC_INNER_PRODUCT
    )
    index.hnsw.efConstruction = HNSW_BUILD_BREADTH
    index.train(vectors[:: max(1, len(vectors) // 65_536)])
    index.add(vectors)
    return index


def _ivf_pq_index(vectors: Vectors) -> Any:
    lists = max(1, int(LISTS_PER_ROOT * math.sqrt(len(vectors))))
    quantizer = faiss.IndexFlatIP(vectors.shape[1])
    index = faiss.IndexIVFPQFastScan(
        quantizer, vectors.shape[1], lists, vectors.shape[1] // 2, 4, faiss.METRIC_INNER_PRODUCT
    )
    index.cp.seed = index.pq.cp.seed = SEED
    sample = np.random.default_rng(SEED).permutation(len(vectors))[: lists * TRAINING_PER_LIST]
    index.train(np.ascontiguousarray(vectors[np.sort(sample)]))
    index.add(vectors)
    return index


_MAKERS = {FLAT: lambda _vectors: None, HNSW: _hnsw_index, IVF_PQ: _ivf_pq_index}


def _parameters(kind: str, count: int, wanted: Allowed | None, among: int) -> Any:
    """One of `among` vectors is wanted."""
    chosen = {} if wanted is None else {"sel": _selector(wanted)}
    if kind == HNSW:
        return faiss.SearchParametersHNSW(efSearch=max(HNSW_SEARCH_BREADTH, count), **chosen)
    return faiss.SearchParametersIVF(
        nprobe=PROBED_LISTS * among, **chosen
    )  # as many wanted ones as else of all


def _selector(allowed: Allowed) -> Any:
    return faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))


def _on_gpu(vectors: Vectors) -> Any:
    index = faiss.GpuIndexFlatIP(faiss.StandardGpuResources(), vectors.shape[1])
    index.add(vectors)
    return index
