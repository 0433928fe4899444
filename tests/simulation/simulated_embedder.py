"""An embedder whose vectors are sums of hashes of words, and which takes virtual time.

Texts with the same words are near each other, as with a model, so that the searcher, the reranker and the
cache of answers above it find something.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import cast

import numpy as np

from shared.retrieval.encoders.embedder import (
    DIMENSIONS,
    EmbeddedQuestions,
    EmbeddedTexts,
    Embedder,
    TextStates,
)
from shared.retrieval.encoders.vectors import Vectors
from tests.simulation.simulated_model import Spend, spend_nothing
from tests.support.hashed_vectors import hashed_vector

TEXT_US = 3000.0
"""The time of one text, about that of a question on one core."""


class SimulatedEmbedder:
    """Stands in for an `Embedder`."""

    is_native = True

    def __init__(self, spend: Spend = spend_nothing) -> None:
        self._spend = spend

    def as_embedder(self) -> Embedder:
        return cast(Embedder, self)

    def embed(self, texts: Sequence[str], progress: Callable[[int], None] | None = None) -> Vectors:
        rows = np.stack([self._states(text).states.sum(axis=0) for text in texts])
        if progress is not None:
            progress(len(texts))
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)

    embed_passages = embed

    def embed_counted(self, texts: Sequence[str]) -> EmbeddedTexts:
        return EmbeddedTexts(self.embed(texts), [len(_words(text)) for text in texts], [False] * len(texts))

    def embed_questions(self, questions: Sequence[str]) -> EmbeddedQuestions:
        return EmbeddedQuestions(self.embed(questions), [False] * len(questions), [1.0] * len(questions))

    def question_states(self, question: str) -> tuple[TextStates, float]:
        return self._states(question), 1.0

    def passage_states(self, texts: Sequence[str], *, threads: int) -> list[TextStates]:
        del threads
        return [self._states(text) for text in texts]

    def give_back_pages(self) -> None:
        """Nothing is mapped."""

    def _states(self, text: str) -> TextStates:
        self._spend(TEXT_US)
        rows = np.stack([_vector(word) for word in _words(text)])
        return TextStates(rows, len(rows), False)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower()) or [""]


@cache
def _vector(word: str) -> Vectors:
    vector = hashed_vector(word)
    assert vector.shape == (DIMENSIONS,)
    return vector
