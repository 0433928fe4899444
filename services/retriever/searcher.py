"""Questions → passages: what runs in the retriever's worker thread."""

from __future__ import annotations

import time
from collections.abc import Sequence

from shared.messages import Retrieve, Retrieved, ScoredPassage
from shared.retrieval.embedder import Embedder
from shared.retrieval.index import PassageIndex


class Searcher:
    def __init__(self, embedder: Embedder, index: PassageIndex) -> None:
        self._embedder = embedder
        self._index = index

    def replace_index(self, index: PassageIndex) -> None:
        """From the next batch on; called from any thread."""
        self._index = index

    def search_passages(self, questions: Sequence[Retrieve]) -> list[Retrieved]:
        """One answer each; the times are those of the whole batch, which each of them waited."""
        started = time.perf_counter_ns()
        vectors = self._embedder.embed([question.query for question in questions])
        embedded = time.perf_counter_ns()
        found = self._index.search(vectors, max(question.k for question in questions))
        searched = time.perf_counter_ns()
        return [
            Retrieved(
                passages=tuple(ScoredPassage(hit.source, hit.text, hit.score) for hit in hits[: question.k]),
                degraded="",
                embed_us=(embedded - started) // 1000,
                search_us=(searched - embedded) // 1000,
            )
            for question, hits in zip(questions, found, strict=True)
        ]
