"""The vectors of questions, kept: a question that is asked again, or by two at a time, is embedded once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import blake2b
from threading import Lock
from typing import Protocol

import numpy as np
from cachetools import LRUCache

from shared.retrieval.encoders.embedder import DIMENSIONS, EmbeddedQuestions
from shared.retrieval.encoders.vectors import Vectors
from shared.telemetry import metrics

DIGEST_BYTES = 16
KEPT_VECTOR_BYTES = DIMENSIONS * 4 + 512
"""The memory of a vector that is kept, with all that is around it, whatever the length of its question."""
DEFAULT_BYTES = 8 << 20
OTHERS_WAIT_S = 0.5
"""The longest wait for the vector of a question that another thread is making; then it is made anew."""


class QuestionEmbedder(Protocol):
    """An Embedder, or one that keeps what it has made."""

    def embed_questions(self, questions: Sequence[str], /) -> EmbeddedQuestions: ...


@dataclass(frozen=True, slots=True)
class QuestionVector:
    """The vector of one question, as in EmbeddedQuestions."""

    vector: Vectors
    truncated: bool
    known: float


Coming = Future[QuestionVector | None]
"""A vector that is being made. None: its maker has failed, and says so to whoever asked it."""


class QuestionVectors:
    """Keeps the vectors of recent questions, for any number of threads. Questions are known by digests, so
    that none is kept itself; the vectors asked for least lately go."""

    def __init__(
        self,
        embedder: QuestionEmbedder,
        max_bytes: int = DEFAULT_BYTES,
        others_wait_s: float = OTHERS_WAIT_S,
    ) -> None:
        self._embedder = embedder
        self._others_wait_s = others_wait_s
        self._most = max_bytes // KEPT_VECTOR_BYTES
        self._lock = Lock()
        self._kept: LRUCache[bytes, QuestionVector] = LRUCache(self._most)
        self._coming: dict[bytes, Coming] = {}

    def embed_questions(self, questions: Sequence[str]) -> EmbeddedQuestions:
        """Return all vectors; those that nobody has made or is making are embedded together. Raises what the
        embedder does."""
        asked = {_digest(question): question for question in questions}
        found, awaited, mine = self._claim(asked)
        if mine:
            found |= self._make(mine)
        late: dict[bytes, str] = {}
        for digest, coming in awaited.items():
            if (row := self._row_of(coming)) is None:
                late[digest] = asked[digest]
            else:
                found[digest] = row
        if late:
            found |= self._embed(late)
        metrics.QUESTION_VECTORS.labels(result="computed").inc(len(mine) + len(late))
        metrics.QUESTION_VECTORS.labels(result="kept").inc(len(asked) - len(mine) - len(late))
        rows = [found[_digest(question)] for question in questions]
        return EmbeddedQuestions(
            np.stack([row.vector for row in rows]),
            [row.truncated for row in rows],
            [row.known for row in rows],
        )

    def _claim(
        self, asked: dict[bytes, str]
    ) -> tuple[dict[bytes, QuestionVector], dict[bytes, Coming], dict[bytes, str]]:
        """Return what is kept, what other threads are making, and what is this thread's to make."""
        with self._lock:
            found = {digest: self._kept[digest] for digest in asked if digest in self._kept}
            awaited = {digest: self._coming[digest] for digest in asked if digest in self._coming}
            mine = {
                digest: question
                for digest, question in asked.items()
                if digest not in found and digest not in awaited
            }
            self._coming |= {digest: Future() for digest in mine}
        return found, awaited, mine

    def _make(self, mine: dict[bytes, str]) -> dict[bytes, QuestionVector]:
        """Make vectors; whoever waits for one hears of it, or that it did not come to be."""
        try:
            made = self._embed(mine)
        except BaseException:
            for coming in self._take_back(mine):
                coming.set_result(None)
            raise
        with self._lock:
            if self._most:
                self._kept.update(made)
        for coming, row in zip(self._take_back(mine), made.values(), strict=True):
            coming.set_result(row)
        return made

    def _row_of(self, coming: Coming) -> QuestionVector | None:
        try:
            return coming.result(self._others_wait_s)
        except TimeoutError:
            return None

    def _take_back(self, mine: dict[bytes, str]) -> list[Coming]:
        with self._lock:
            return [self._coming.pop(digest) for digest in mine]

    def _embed(self, questions: dict[bytes, str]) -> dict[bytes, QuestionVector]:
        made = self._embedder.embed_questions(list(questions.values()))
        rows = zip(questions, made.vectors, made.truncated, made.known, strict=True)
        # A row of its own: a view would keep the array of all its batch.
        return {digest: QuestionVector(vector.copy(), cut, known) for digest, vector, cut, known in rows}


def _digest(question: str) -> bytes:
    return blake2b(question.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()
