"""Questions → passages: what runs in the retriever's worker thread.

What finds most cheaply goes first, and each part that is done writes what there is so far into the ask: a
question that reaches its limit is answered with that. Words (BM25), then meaning (vectors), which counts as
much as the embedder knows of the question's language; then, where there is a reranker, the best in its order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from services.retriever.question import DEGRADED_DENSE, DEGRADED_RERANK, SearchAsk
from shared.errors import DeadlineExpired, PenstockError
from shared.messages import Retrieved, ScoredPassage
from shared.retrieval.embedder import MAX_TOKENS
from shared.retrieval.fusion import Ranking, fuse_rankings
from shared.retrieval.index import Hit, PassageIndex
from shared.retrieval.lexical import Rows, Scores
from shared.retrieval.question_vectors import QuestionEmbedder
from shared.retrieval.rerank import Reranker

FIRST_STAGE_PASSAGES = 100
"""Of each ranking."""
RERANKED_PASSAGES = 32
TRUNCATED = f"the question is longer than {MAX_TOKENS} tokens: its meaning was searched for by its beginning"


class Searcher:
    def __init__(
        self, embedder: QuestionEmbedder, index: PassageIndex, reranker: Reranker | None = None
    ) -> None:
        self._embedder = embedder
        self._index = index
        self._reranker = reranker

    def replace_index(self, index: PassageIndex) -> None:
        """From the next batch on; called from any thread."""
        self._index = index

    def search_passages(self, asks: Sequence[SearchAsk]) -> list[Retrieved | PenstockError]:
        """One answer each; the times are those of the whole batch, which each of them waited."""
        index, began_ns = self._index, time.perf_counter_ns()
        depth = min(FIRST_STAGE_PASSAGES, len(index))
        queries = [ask.retrieve.query for ask in asks]
        words = [_ranking(*found) for found in zip(*index.lexical.search(queries, depth), strict=True)]
        for ask, ranking in zip(asks, words, strict=True):
            ask.found = _answer(ask, self._hits(ask, index, [ranking]), degraded=DEGRADED_DENSE)
        words_ns = time.perf_counter_ns()
        embedded = self._embedder.embed_questions(queries)
        embed_us = (time.perf_counter_ns() - words_ns) // 1000
        scores, rows = index.search_rows(embedded.vectors, depth)
        meaning = [_ranking(*found) for found in zip(scores, rows, embedded.known, strict=True)]
        hits = [self._hits(ask, index, rankings) for ask, *rankings in zip(asks, meaning, words, strict=True)]
        search_us = (time.perf_counter_ns() - began_ns) // 1000 - embed_us
        answers = [
            _answer(ask, found, warning=TRUNCATED if cut else "", embed_us=embed_us, search_us=search_us)
            for ask, found, cut in zip(asks, hits, embedded.truncated, strict=True)
        ]
        if self._reranker is None:
            return list(answers)
        for ask, answer in zip(asks, answers, strict=True):
            ask.found = replace(answer, degraded=DEGRADED_RERANK)
        return [self._rerank(self._reranker, *each) for each in zip(asks, hits, answers, strict=True)]

    def _hits(self, ask: SearchAsk, index: PassageIndex, rankings: Sequence[Ranking]) -> list[Hit]:
        """Of the rankings' passages the best, as many as are wanted or reranked, none of them twice: what
        differs in spaces and case alone is one, named as it was found first."""
        most = max(ask.retrieve.k, 0 if self._reranker is None else RERANKED_PASSAGES)
        hits: dict[str, Hit] = {}
        for row, score in fuse_rankings(rankings, 2 * FIRST_STAGE_PASSAGES):
            hit = index.hit(row, score)
            hits.setdefault(" ".join(hit.text.casefold().split()), hit)
            if len(hits) == most:
                break
        return list(hits.values())

    def _rerank(
        self, reranker: Reranker, ask: SearchAsk, hits: Sequence[Hit], answer: Retrieved
    ) -> Retrieved | PenstockError:
        """The best hits in the reranker's order, as many of them as there was time for, then the others."""
        if not ask.retrieve.rerank:
            return replace(answer, degraded=DEGRADED_RERANK)
        began_ns = time.perf_counter_ns()
        ranked = reranker.rerank(ask.retrieve.query, [hit.text for hit in hits[:RERANKED_PASSAGES]], ask.end)
        if not ranked.whole and not ask.retrieve.may_degrade:
            return DeadlineExpired("there was no time to rerank; allow more, or let it degrade")
        ordered = [hits[place] for place in ranked.order]
        passages = _answer(ask, [*ordered, *hits[RERANKED_PASSAGES:]]).passages
        rerank_us = (time.perf_counter_ns() - began_ns) // 1000
        degraded = "" if ranked.whole else DEGRADED_RERANK
        return replace(answer, passages=passages, degraded=degraded, rerank_us=rerank_us)


def _ranking(scores: Scores, rows: Rows, weight: float = 1.0) -> Ranking:
    """Of what was found: -1 is no row."""
    count = int((rows >= 0).sum())
    return Ranking(rows[:count].tolist(), scores[:count].tolist(), weight)


def _answer(
    ask: SearchAsk,
    hits: Sequence[Hit],
    *,
    degraded: str = "",
    warning: str = "",
    embed_us: int = 0,
    search_us: int = 0,
) -> Retrieved:
    passages = tuple(
        ScoredPassage(hit.source, hit.text, hit.score, hit.start, hit.end, hit.page)
        for hit in hits[: ask.retrieve.k]
    )
    return Retrieved(passages, degraded, embed_us, search_us, warning=warning)
