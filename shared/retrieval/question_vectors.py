"""The vectors of questions, kept: those that are asked again need no model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shared.retrieval.embedder import EmbeddedQuestions, Embedder
from shared.retrieval.vectors import Vectors

MAX_KEPT_QUESTIONS = 4096
"""Of 1.5 kB each, and their texts."""
MAX_KEPT_CHARS = 1024
"""Of a question: longer ones hardly come again."""


@dataclass(frozen=True, slots=True)
class _Kept:
    vector: Vectors
    truncated: bool
    known: float


class QuestionVectors:
    """One thread at a time. The questions asked least lately go."""

    def __init__(self, embedder: Embedder, *, most: int = MAX_KEPT_QUESTIONS) -> None:
        self._embedder = embedder
        self._most = most
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def embed(self, questions: Sequence[str]) -> EmbeddedQuestions:
        """Those that are not kept are embedded together."""
        found = {each: self._kept[each] for each in questions if each in self._kept}
        new = list(dict.fromkeys(each for each in questions if each not in found))
        if new:
            made = self._embedder.embed_questions(new)
            rows = zip(new, made.vectors, made.truncated, made.known, strict=True)
            found |= {question: _Kept(*row) for question, *row in rows}
        for question in questions:
            self._keep(question, found[question])
        rows_found = [found[question] for question in questions]
        return EmbeddedQuestions(
            np.stack([row.vector for row in rows_found]),
            [row.truncated for row in rows_found],
            [row.known for row in rows_found],
        )

    def _keep(self, question: str, found: _Kept) -> None:
        if len(question) > MAX_KEPT_CHARS:
            return
        self._kept[question] = found
        self._kept.move_to_end(question)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
