"""Questions whose answers are kept, by the nearness of their vectors."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from services.retriever.question_facts import QuestionFacts, facts_of
from services.retriever.response_cache import KeptEntry
from shared.retrieval.encoders.vectors import Vectors

MAX_SAME_SCOPE = 16_384
"""The most questions that are compared with each other, the latest ones: 6 million products take
milliseconds."""
HIGHEST_SIMILARITY = 1.0 - 2**-20
"""1.0 is said of the same request alone."""


@dataclass(frozen=True, slots=True, eq=False)
class SimilarQuestion:
    entry: KeptEntry
    facts: QuestionFacts


class SimilarQuestions:
    """One array of vectors [rows, dimensions], in which rows that are free are taken again.

    Questions are compared within a scope: a tenant, and all that an answer depends on but the question.
    """

    def __init__(self, max_rows: int, dimensions: int) -> None:
        self._vectors: Vectors = np.zeros((max_rows, dimensions), dtype=np.float32)
        self._questions: dict[int, SimilarQuestion] = {}
        self._row_of: dict[KeptEntry, int] = {}
        self._scopes: defaultdict[tuple[str, bytes], dict[int, None]] = defaultdict(dict)
        self._free = list(range(max_rows - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._questions)

    @property
    def bytes_per_row(self) -> int:
        return int(self._vectors.itemsize * self._vectors.shape[1])

    def add(self, entry: KeptEntry, vector: Vectors) -> None:
        """`vector` [dimensions] is of length 1. There has to be a free row."""
        row = self._free.pop()
        self._vectors[row] = vector
        self._questions[row] = SimilarQuestion(entry, facts_of(entry.key.question))
        self._row_of[entry] = row
        self._scopes[entry.key.tenant, entry.key.near][row] = None

    def discard(self, entry: KeptEntry) -> None:
        row = self._row_of.pop(entry, None)
        if row is None:
            return
        scope = (entry.key.tenant, entry.key.near)
        del self._questions[row], self._scopes[scope][row]
        if not self._scopes[scope]:
            del self._scopes[scope]
        self._free.append(row)

    def nearest(
        self, tenant: str, near: bytes, question: str, vector: Vectors, least: float
    ) -> list[tuple[float, KeptEntry]]:
        """Return those of the scope that are similar enough and whose facts are the same, best first."""
        kept = self._scopes.get((tenant, near))
        if not kept:
            return []
        rows = np.fromiter(kept, dtype=np.intp, count=len(kept))[-MAX_SAME_SCOPE:]
        similarities = self._vectors[rows] @ vector  # [rows]
        order = np.argsort(-similarities, kind="stable")
        facts = facts_of(question)
        found = []
        for place in order[: int((similarities >= least).sum())]:
            similar = self._questions[int(rows[place])]
            if similar.facts.agree_with(facts):
                found.append((min(float(similarities[place]), HIGHEST_SIMILARITY), similar.entry))
        return found
