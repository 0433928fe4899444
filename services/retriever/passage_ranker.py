"""Rerank what a search has found, in the retriever's worker thread."""

from __future__ import annotations

from dataclasses import dataclass, replace

from services.retriever.question import DEGRADED_RERANK, SearchAsk, wanted_passages
from shared.errors import DeadlineExpired
from shared.messages import Retrieved, ScoredPassage
from shared.retrieval.encoders.rerank import Reranker, rerank_passages
from shared.seams.clock import SYSTEM_CLOCK

RERANKED_PASSAGES = 32
"""The passages of a question that are reranked: the best of its search."""


@dataclass(frozen=True, slots=True)
class Unranked:
    """The passages that a search has found, best first: as many as are wanted, and at least those that are
    reranked. `texts` is the part of each of these that is read, `search_scores` what they were
    found with."""

    found: Retrieved
    texts: tuple[str, ...]
    search_scores: tuple[float, ...]


class PassageRanker:
    def __init__(self, reranker: Reranker) -> None:
        self.name = reranker.name
        self._reranker = reranker

    def rank_passages(self, ask: SearchAsk, unranked: Unranked) -> Retrieved | DeadlineExpired:
        """The best passages in the reranker's order, as many of them as there was time for, then the
        others. Their scores are those of the search, dealt out anew: the higher, the better."""
        began_ns, found = SYSTEM_CLOCK.monotonic_ns(), unranked.found
        best, rest = found.passages[: len(unranked.texts)], found.passages[len(unranked.texts) :]
        ranked = rerank_passages(
            self._reranker,
            ask.retrieve.query,
            unranked.texts,
            unranked.search_scores,
            ask.end,
            owner=f"corpus {found.corpus}",
            is_wanted=lambda: not ask.dropped,
        )
        if not ranked.whole and not ask.retrieve.may_degrade:
            return DeadlineExpired("there was no time to rerank; allow more, or let it degrade")
        ordered = (*(best[place] for place in ranked.order), *rest)
        scores = sorted((passage.score for passage in ordered), reverse=True)
        reranked = replace(
            found,
            passages=tuple(map(_with_score, ordered, scores)),
            degraded="" if ranked.whole else DEGRADED_RERANK,
            rerank_us=(SYSTEM_CLOCK.monotonic_ns() - began_ns) // 1000,
        )
        return wanted_passages(reranked, ask.retrieve)


def _with_score(passage: ScoredPassage, score: float) -> ScoredPassage:
    return replace(passage, score=score)
