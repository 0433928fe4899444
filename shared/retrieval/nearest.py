"""The vectors nearest to a question's, found with faiss: among all, or among a part of them where there are
many.

flat all are compared: exact hnsw a graph over 8-bit copies (Malkov and Yashunin 2018), from FLAT_VECTORS on
ivf-pq lists of compressed copies (Jégou et al. 2011), from HNSW_VECTORS on: built many times faster

What the last two find is compared once more with the vectors themselves: a score is always the exact cosine.
With a faiss that computes on a GPU, and one to compute on, all are compared there.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Self

import faiss
import numpy as np

from shared.errors import ChecksumMismatch
from shared.retrieval.lexical import Allowed, Rows, Scores
from shared.retrieval.vectors import Vectors

# Its threads wait for each other by spinning: on cores that others use too, two take 15 times as long as one.
faiss.omp_set_num_threads(1)

FLAT, HNSW, IVF_PQ = "flat", "hnsw", "ivf-pq"
KINDS = (FLAT, HNSW, IVF_PQ)
NEAREST_NAME = "nearest.faiss"
"""Of the kinds that are not flat."""

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

COMPARED_AGAIN = 400
"""Candidates whose cosines are computed exactly; at least twice as many as are asked for."""


def kind_for(vectors: int) -> str:
    """By measured time and recall (tests/bench/README.md)."""
    if vectors < FLAT_VECTORS or faiss.get_num_gpus():
        return FLAT
    return HNSW if vectors < HNSW_VECTORS else IVF_PQ


class NearestVectors:
    """`search` may be called from any one thread at a time. `vectors` [n, dimensions] are of length 1."""

    def __init__(self, kind: str, index: Any, vectors: Vectors) -> None:
        self.kind = kind
        self._index = index
        self._vectors = vectors
        self._gpu = _on_gpu(index) if kind == FLAT and faiss.get_num_gpus() else None

    @classmethod
    def build(cls, vectors: Vectors, kind: str = "") -> Self:
        """Of the kind that fits their number where none is named."""
        kind = kind or kind_for(len(vectors))
        return cls(kind, _MAKERS[kind](vectors), vectors)

    @property
    def description(self) -> str:
        """The kind, and which faiss computes where."""
        return f"{self.kind}, faiss {faiss.__version__} on the {'CPU' if self._gpu is None else 'GPU'}"

    def search(self, queries: Vectors, k: int, allowed: Allowed | None = None) -> tuple[Scores, Rows]:
        """For each of `queries` [n, dimensions] its k nearest, best first: cosines and rows [n, k], -1 where
        there are no more."""
        k = min(k, len(self._vectors))
        if allowed is not None and np.count_nonzero(allowed) <= FLAT_VECTORS:
            few = np.flatnonzero(allowed)
            return self._compared(queries, np.broadcast_to(few, (len(queries), len(few))), k)
        if self.kind == FLAT and allowed is None:
            index = self._index if self._gpu is None else self._gpu
            scores, rows = index.search(queries, k)
            return scores, rows
        count = min(max(COMPARED_AGAIN, 2 * k), len(self._vectors))
        _, candidates = self._index.search(queries, count, params=_parameters(self.kind, count, allowed))
        return self._compared(queries, candidates, k)

    def save(self, folder: Path) -> None:
        if self.kind != FLAT:
            faiss.write_index(self._index, str(folder / NEAREST_NAME))

    @classmethod
    def load(cls, folder: Path, kind: str, vectors: Vectors) -> Self:
        """The caller has compared the checksum of its file. Raises ChecksumMismatch when it is of other
        vectors."""
        if kind == FLAT:
            return cls(kind, _flat_index(vectors), vectors)
        try:
            index = faiss.read_index(str(folder / NEAREST_NAME))
        except RuntimeError as error:
            raise ChecksumMismatch(f"{folder / NEAREST_NAME} cannot be read") from error
        if (index.ntotal, index.d) != vectors.shape:
            raise ChecksumMismatch(f"{folder / NEAREST_NAME} is of other vectors")
        return cls(kind, index, vectors)

    def _compared(self, queries: Vectors, candidates: Rows, k: int) -> tuple[Scores, Rows]:
        """The best k of each query's candidates, by their exact cosines."""
        scores = np.zeros((len(queries), k), np.float32)
        rows = np.full((len(queries), k), -1, np.int64)
        for place, query in enumerate(queries):
            found = candidates[place][candidates[place] >= 0]
            exact = self._vectors[found] @ query
            best = np.lexsort((found, -exact))[:k]
            scores[place, : len(best)] = exact[best]
            rows[place, : len(best)] = found[best]
        return scores, rows


def _flat_index(vectors: Vectors) -> Any:
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index


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


_MAKERS = {FLAT: _flat_index, HNSW: _hnsw_index, IVF_PQ: _ivf_pq_index}


def _parameters(kind: str, count: int, allowed: Allowed | None) -> Any:
    chosen = {} if allowed is None else {"sel": _selector(allowed)}
    if kind == FLAT:
        return faiss.SearchParameters(**chosen)
    if kind == HNSW:
        return faiss.SearchParametersHNSW(efSearch=max(HNSW_SEARCH_BREADTH, count), **chosen)
    among = 1 if allowed is None else math.ceil(len(allowed) / max(1, int(allowed.sum())))
    return faiss.SearchParametersIVF(
        nprobe=PROBED_LISTS * among, **chosen
    )  # as many allowed ones as else of all


def _selector(allowed: Allowed) -> Any:
    return faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))


def _on_gpu(index: Any) -> Any:
    return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
