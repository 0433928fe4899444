"""Compute in the retriever's worker thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.retriever.passage_ranker import PassageRanker, Unranked
from services.retriever.question import Question, SearchAsk
from services.retriever.text_jobs import TextJob, TextWork
from services.retriever.work_queue import RetrieverWork
from shared.errors import PenstockError
from shared.messages import Message, Retrieved

WorkResult = Message | Unranked | PenstockError
"""Unranked: it is still to be reranked."""
Search = Callable[[Sequence[SearchAsk]], Sequence[Retrieved | Unranked | PenstockError]]
"""One answer for each question, and on the way there what it has so far."""


@dataclass(frozen=True, slots=True)
class Computing:
    """One thread at a time."""

    search: Search
    ranker: PassageRanker | None
    texts: TextWork

    def compute(self, work: RetrieverWork) -> Sequence[WorkResult]:
        """One answer for each that is asked."""
        first = work.asked[0]
        try:
            if isinstance(first, TextJob):
                return [self.texts.run(first)]
            if work.unranked is not None:
                assert self.ranker is not None
                return [self.ranker.rank_passages(first.ask, work.unranked)]
        except PenstockError as error:
            return [error]
        return self.search([asked.ask for asked in work.asked if isinstance(asked, Question)])
