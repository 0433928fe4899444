"""The vectors of questions, kept: a question that a tenant asks again, or twice at a time, is embedded once.

Each tenant's are its own: how soon a question is answered tells nobody that another tenant has asked it, and
who asks many questions pushes out none of those that belong to another tenant's share.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import blake2b
from threading import Lock
from typing import Protocol

import numpy as np

from shared.fair_cache import FairCache
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
    """Makes vectors of questions, as an Embedder does."""

    def embed_questions(self, questions: Sequence[str], /) -> EmbeddedQuestions: ...


@dataclass(frozen=True, slots=True)
class QuestionVector:
    """The vector of one question, as in EmbeddedQuestions."""

    vector: Vectors
    truncated: bool
    known: float


Coming = Future[QuestionVector | None]
"""A vector that is being made. None: its maker has failed, and says so to whoever asked it."""
AskedQuestion = tuple[str, bytes]
"""A question: the tenant that asks it, and its digest."""


class QuestionVectors:
    """Keeps the vectors of recent questions, for any number of threads. Questions are known by digests, so
    that none is kept itself; of the tenant with most of them, the vector asked for least lately goes."""

    def __init__(
        self,
        embedder: QuestionEmbedder,
        max_bytes: int = DEFAULT_BYTES,
        others_wait_s: float = OTHERS_WAIT_S,
    ) -> None:
        self._embedder = embedder
        self._others_wait_s = others_wait_s
        self._lock = Lock()
        self._kept: FairCache[bytes, QuestionVector] = FairCache(max_bytes // KEPT_VECTOR_BYTES)
        self._coming: dict[AskedQuestion, Coming] = {}

    def embed_questions(self, questions: Sequence[str], tenants: Sequence[str]) -> EmbeddedQuestions:
        """Return all vectors, of questions of these tenants; those that nobody has made or is making are
        embedded together. Raises what the embedder does."""
        places = list(zip(tenants, map(_digest, questions), strict=True))
        asked = dict(zip(places, questions, strict=True))
        found, awaited, mine = self._claim(asked)
        if mine:
            found |= self._make(mine)
        late: dict[AskedQuestion, str] = {}
        for place, coming in awaited.items():
            if (row := self._row_of(coming)) is None:
                late[place] = asked[place]
            else:
                found[place] = row
        if late:
            found |= self._embed(late)
        metrics.QUESTION_VECTORS.labels(result="computed").inc(len(mine) + len(late))
        metrics.QUESTION_VECTORS.labels(result="kept").inc(len(asked) - len(mine) - len(late))
        rows = [found[place] for place in places]
        return EmbeddedQuestions(
            np.stack([row.vector for row in rows]),
            [row.truncated for row in rows],
            [row.known for row in rows],
        )

    def _claim(
        self, asked: dict[AskedQuestion, str]
    ) -> tuple[dict[AskedQuestion, QuestionVector], dict[AskedQuestion, Coming], dict[AskedQuestion, str]]:
        """Return what is kept, what other threads are making, and what is this thread's to make."""
        with self._lock:
            found = {place: kept for place in asked if (kept := self._kept.get(*place)) is not None}
            awaited = {place: self._coming[place] for place in asked if place in self._coming}
            mine = {
                place: question
                for place, question in asked.items()
                if place not in found and place not in awaited
            }
            self._coming |= {place: Future() for place in mine}
        return found, awaited, mine

    def _make(self, mine: dict[AskedQuestion, str]) -> dict[AskedQuestion, QuestionVector]:
        """Make vectors; whoever waits for one hears of it, or that it did not come to be."""
        try:
            made = self._embed(mine)
        except BaseException:
            for coming in self._take_back(mine):
                coming.set_result(None)
            raise
        with self._lock:
            for place, row in made.items():
                self._kept.put(*place, row)
        for coming, row in zip(self._take_back(mine), made.values(), strict=True):
            coming.set_result(row)
        return made

    def _row_of(self, coming: Coming) -> QuestionVector | None:
        try:
            return coming.result(self._others_wait_s)
        except TimeoutError:
            return None

    def _take_back(self, mine: dict[AskedQuestion, str]) -> list[Coming]:
        with self._lock:
            return [self._coming.pop(place) for place in mine]

    def _embed(self, questions: dict[AskedQuestion, str]) -> dict[AskedQuestion, QuestionVector]:
        made = self._embedder.embed_questions(list(questions.values()))
        rows = zip(questions, made.vectors, made.truncated, made.known, strict=True)
        # A row of its own: a view would keep the array of all its batch.
        return {place: QuestionVector(vector.copy(), cut, known) for place, vector, cut, known in rows}


def _digest(question: str) -> bytes:
    return blake2b(question.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()
