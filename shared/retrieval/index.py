"""Passages and their vectors, searched exactly."""

from __future__ import annotations

from dataclasses import dataclass

import faiss

from shared.retrieval.passages import Passage
from shared.retrieval.vectors import Vectors


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """One document: `key` names its content, so that an unchanged file is not embedded again."""

    name: str
    key: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """`source` is the file and the headings; `score` the cosine with the query."""

    source: str
    text: str
    score: float


class PassageIndex:
    """`vectors` [passages, dimensions] are of length 1, in the order of the files' passages."""

    def __init__(self, files: tuple[IndexedFile, ...], vectors: Vectors) -> None:
        self.files = files
        self.vectors = vectors
        self._rows = [(file.name, passage) for file in files for passage in file.passages]
        if len(self._rows) != len(vectors):
            raise ValueError(f"{len(vectors)} vectors for {len(self._rows)} passages")
        self._faiss = faiss.IndexFlatIP(vectors.shape[1])
        self._faiss.add(vectors)

    def __len__(self) -> int:
        return len(self._rows)

    def search(self, queries: Vectors, k: int) -> list[list[Hit]]:
        """For each row of `queries` [n, dimensions] the best k passages, best first."""
        scores, rows = self._faiss.search(queries, min(k, len(self)))
        return [
            [self._hit(int(row), float(score)) for row, score in zip(found, of, strict=True)]
            for found, of in zip(rows, scores, strict=True)
        ]

    def _hit(self, row: int, score: float) -> Hit:
        name, passage = self._rows[row]
        return Hit(f"{name} § {passage.heading}" if passage.heading else name, passage.text, score)
