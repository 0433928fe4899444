"""Queue what a retriever has been asked for, and choose what its worker thread does next.

Three kinds of work take turns where they wait: a batch of questions is searched for, one question's passages
are reranked, texts of no corpus are embedded or scored. So who comes while many are reranked is searched for
after one of these and not after all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from services.retriever.passage_ranker import Unranked
from services.retriever.question import Question
from services.retriever.question_batch import next_batch
from services.retriever.text_jobs import TextJob
from shared.messages import Held

Asked = Question | TextJob


class WorkKind(Enum):
    SEARCH = "searching"
    RERANK = "reranking"
    TEXTS = "texts"


@dataclass(frozen=True, slots=True)
class RetrieverWork:
    """One piece of work for the thread: questions to search for, one with what was found for it, or one job
    of texts."""

    kind: WorkKind
    asked: Sequence[Asked]
    unranked: Unranked | None = None


class WorkQueue:
    """Everything that is asked for is in exactly one place: it waits to be searched for, to be reranked or
    for its texts, or it is being computed."""

    def __init__(self, batch: int, batch_bytes: int) -> None:
        self._batch, self._batch_bytes = batch, batch_bytes
        self._new: list[Question] = []
        self._unranked: dict[Question, Unranked] = {}
        self._texts: deque[TextJob] = deque()
        self._computing: list[Asked] = []
        self._phase = ""
        self._turns = deque(WorkKind)

    @property
    def waiting(self) -> int:
        return len(self._new) + len(self._unranked) + len(self._texts)

    @property
    def computing(self) -> int:
        return len(self._computing)

    def everything(self) -> list[Asked]:
        return [*self._new, *self._unranked, *self._texts, *self._computing]

    def held(self) -> list[Held]:
        phases: list[tuple[Asked, str]] = [(asked, self._phase) for asked in self._computing]
        phases += [(asked, WorkKind.RERANK.value) for asked in self._unranked]
        waiting: list[Asked] = [*self._new, *self._texts]
        phases += [(asked, "queued") for asked in waiting]
        return [Held(asked.request_id, "queued", 1, phase) for asked, phase in phases]

    def add(self, asked: Asked) -> None:
        if isinstance(asked, TextJob):
            self._texts.append(asked)
        else:
            self._new.append(asked)

    def next_work(self) -> RetrieverWork | None:
        """Takes it out of those that wait. None: nothing waits."""
        waiting: dict[WorkKind, Collection[Asked]] = {
            WorkKind.SEARCH: self._new,
            WorkKind.RERANK: self._unranked,
            WorkKind.TEXTS: self._texts,
        }
        kind = next((kind for kind in self._turns if waiting[kind]), None)
        if kind is None:
            return None
        unranked = None
        self._turns.remove(kind)
        self._turns.append(kind)
        if kind is WorkKind.SEARCH:
            self._computing = list(next_batch(self._new, self._batch, self._batch_bytes))
            self._new = [asked for asked in self._new if asked not in self._computing]
        elif kind is WorkKind.RERANK:
            question = next(iter(self._unranked))
            self._computing, unranked = [question], self._unranked.pop(question)
        else:
            self._computing = [self._texts.popleft()]
        first = self._computing[0]
        self._phase = first.phase if isinstance(first, TextJob) else kind.value
        return RetrieverWork(kind, tuple(self._computing), unranked)

    def done(self, asked: Asked) -> bool:
        """It has been computed. False: nobody waits for it any more."""
        if asked not in self._computing:
            return False
        self._computing.remove(asked)
        return True

    def rerank_later(self, asked: Question, found: Unranked) -> None:
        self._unranked[asked] = found

    def forget(self, asked: Asked) -> bool:
        """Nobody waits for it any more, and what computes it may stop. True: it is being computed."""
        is_computed = self.done(asked)
        if isinstance(asked, TextJob):
            asked.dropped = True
            self._texts = deque(job for job in self._texts if job is not asked)
        else:
            asked.ask.dropped = True
            self._new = [question for question in self._new if question is not asked]
            self._unranked.pop(asked, None)
        return is_computed
