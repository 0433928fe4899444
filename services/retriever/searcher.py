"""Questions → passages: what runs in the retriever's worker thread.

What finds most cheaply goes first, and each part that is done writes what there is so far into the ask: a
question that reaches its limit is answered with that. Words (BM25), then meaning (vectors), which counts as
much as the embedder knows of the question's language. What is to be reranked comes back as that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from services.retriever.passage_ranker import RERANKED_PASSAGES, Unranked
from services.retriever.question import DEGRADED_DENSE, DEGRADED_RERANK, SearchAsk, wanted_passages
from services.retriever.served_corpus import ServedCorpus
from shared.errors import PenstockError
from shared.messages import Filters, Retrieved, ScoredPassage
from shared.retrieval.encoders.embedder import MAX_TOKENS
from shared.retrieval.encoders.fusion import Ranking, add_shares, fuse_rankings
from shared.retrieval.encoders.passage_probability import PassageEvidence, falling, lead_of
from shared.retrieval.encoders.question_vectors import QuestionVectors
from shared.retrieval.encoders.vectors import Vectors
from shared.retrieval.index.lexical import Allowed, Rows, Scores
from shared.retrieval.index.passage_index import Hit, PassageIndex
from shared.seams.clock import SYSTEM_CLOCK

FIRST_STAGE_PASSAGES = 100
"""The passages of each ranking."""
MEANING_WEIGHT = 3.0
"""The weight of meaning beside that of words, for a question that the embedder knows every word of."""
CLEARLY_FIRST = 0.07
"""A best passage whose score is higher than the next one's by this is the best: another look at them costs
more than it finds."""
KNOWN_LITTLE = 0.1
"""A question that the embedder knows less of has token states that say nothing which is worth their time."""
TRUNCATED = f"the question is longer than {MAX_TOKENS} tokens: its meaning was searched for by its beginning"


@dataclass(frozen=True, slots=True)
class SearchGroup:
    """The questions of a batch, by their places, that search the same passages: `allowed` [passages], or all
    of them."""

    corpus: str
    index: PassageIndex
    allowed: Allowed | None
    warning: str
    places: list[int]


class Searcher:
    def __init__(
        self, vectors: QuestionVectors, *, is_reranked: bool = False, reranks_agreed: bool = True
    ) -> None:
        """`is_reranked`: what is found has another order before it; `reranks_agreed`: also where words and
        meaning agree on what is best, or one passage clearly is, and where little is known of the question's
        words."""
        self._vectors = vectors
        self._is_reranked = is_reranked
        self._reranks_agreed = reranks_agreed

    def search_passages(self, asks: Sequence[SearchAsk]) -> list[Retrieved | Unranked | PenstockError]:
        """One answer each, or what it is to be made of; the times are those of the whole batch, which each of
        them waited."""
        began_ns = SYSTEM_CLOCK.monotonic_ns()
        queries = [ask.retrieve.query for ask in asks]
        groups = _groups(asks)
        words: dict[int, Ranking] = {}
        for group in groups:
            asked = [queries[place] for place in group.places]
            found = group.index.lexical.search(asked, _depth(group), group.allowed)
            for place, *ranked in zip(group.places, *found, strict=True):
                words[place] = _ranking(*ranked)
                hits = self._hits(asks[place], group.index, [words[place]])
                rated = _rated(group.index, queries[place], hits, words[place])
                asks[place].found = wanted_passages(
                    _answer(group, rated, degraded=DEGRADED_DENSE), asks[place].retrieve
                )
        words_ns = SYSTEM_CLOCK.monotonic_ns()
        embedded = self._vectors.embed_questions(queries, [ask.retrieve.tenant for ask in asks])
        embed_us = (SYSTEM_CLOCK.monotonic_ns() - words_ns) // 1000
        hits_of: dict[int, list[Hit]] = {}
        cosines: dict[int, Ranking] = {}
        settled: set[int] = set()
        for group in groups:
            found = group.index.search_rows(embedded.vectors[group.places], _depth(group), group.allowed)
            for place, *ranked in zip(group.places, *found, strict=True):
                weight = MEANING_WEIGHT * embedded.known[place]
                meaning = _ranking(*ranked, weight=weight)
                agreed = embedded.known[place] < KNOWN_LITTLE or _agree(words[place], meaning)
                meaning = _with_cosines(
                    meaning, words[place].rows, group.index.vectors, embedded.vectors[place]
                )
                cosines[place] = meaning
                hits_of[place] = self._hits(asks[place], group.index, [meaning, words[place]])
                if agreed or _is_clear(hits_of[place]):
                    settled.add(place)
        search_us = (SYSTEM_CLOCK.monotonic_ns() - began_ns) // 1000 - embed_us
        group_of = {place: group for group in groups for place in group.places}
        answers: list[Retrieved | Unranked | PenstockError] = []
        for place, ask in enumerate(asks):
            group, hits, cut = group_of[place], hits_of[place], embedded.truncated[place]
            rated = _rated(
                group.index, queries[place], hits, words[place], cosines[place], embedded.known[place]
            )
            whole = _answer(group, rated, cut=cut, embed_us=embed_us, search_us=search_us)
            needs_rerank = self._reranks_agreed or place not in settled
            answers.append(self._answer_or_unranked(ask, group, hits, whole, needs_rerank=needs_rerank))
        return answers

    def _answer_or_unranked(
        self,
        ask: SearchAsk,
        group: SearchGroup,
        hits: Sequence[Hit],
        found: Retrieved,
        *,
        needs_rerank: bool,
    ) -> Retrieved | Unranked:
        """Answer in the order of the search where there is no time for reranking, or none is wanted, or it
        would change nothing for the better."""
        answer = wanted_passages(found, ask.retrieve)
        if not self._is_reranked or not hits or not needs_rerank:
            return answer
        ask.found = replace(answer, degraded=DEGRADED_RERANK)
        if not ask.retrieve.rerank:
            return ask.found
        table = group.index.table
        read = hits[:RERANKED_PASSAGES]
        return Unranked(
            found,
            tuple(table.passage(hit.row).embedded_text for hit in read),
            tuple(hit.score for hit in read),
        )

    def _hits(self, ask: SearchAsk, index: PassageIndex, rankings: Sequence[Ranking]) -> list[Hit]:
        """Return the best passages of the rankings, as many as are wanted or reranked, none of them twice:
        passages that differ in spaces and case alone are one, named as it was found first."""
        most = max(ask.retrieve.k, RERANKED_PASSAGES if self._is_reranked else 0)
        hits: dict[str, Hit] = {}
        fused = fuse_rankings(rankings, 2 * FIRST_STAGE_PASSAGES)
        shares = index.lexical.word_shares(ask.retrieve.query, [row for row, _ in fused])
        for row, score in add_shares(fused, shares):
            hit = index.hit(row, score)
            hits.setdefault(" ".join(hit.text.casefold().split()), hit)
            if len(hits) == most:
                break
        return list(hits.values())


def _ranking(scores: Scores, rows: Rows, *, weight: float = 1.0) -> Ranking:
    """Return the ranking of what was found: -1 is no row."""
    count = int((rows >= 0).sum())
    return Ranking(rows[:count].tolist(), scores[:count].tolist(), weight)


def _agree(words: Ranking, meaning: Ranking) -> bool:
    """Whether both have found the same passage first: then their order is as good as that of late
    interaction, which is of the same embedder (`bench_retrieval`)."""
    return list(words.rows[:1]) == list(meaning.rows[:1])


def _is_clear(hits: Sequence[Hit]) -> bool:
    """Whether the best passage stands far above the next one."""
    return len(hits) < 2 or hits[0].score - hits[1].score >= CLEARLY_FIRST


def _rated(
    index: PassageIndex,
    question: str,
    hits: Sequence[Hit],
    words: Ranking,
    meaning: Ranking | None = None,
    known: float = 0.0,
) -> list[Hit]:
    """Return the hits with how likely it is that each answers the question as its score."""
    of_words = dict(zip(words.rows, words.scores, strict=True))
    cosines = {} if meaning is None else dict(zip(meaning.rows, meaning.scores, strict=True))
    most = index.lexical.most_score(question) or 1.0
    lead = lead_of(words.scores, most)
    likely = [
        PassageEvidence(
            cosine=cosines.get(hit.row, 0.0),
            words=of_words.get(hit.row, 0.0) / most,
            fused=hit.score,
            known=known,
            lead=lead,
        ).probability
        for hit in hits
    ]
    return [replace(hit, score=score) for hit, score in zip(hits, falling(likely), strict=True)]


def _with_cosines(meaning: Ranking, rows: Sequence[int], vectors: Vectors, question: Vectors) -> Ranking:
    """Add the cosines of those of `rows` that were found by words alone."""
    known = set(meaning.rows)
    others = [row for row in rows if row not in known]
    cosines = np.asarray(vectors[others]) @ question
    return Ranking([*meaning.rows, *others], [*meaning.scores, *cosines.tolist()], meaning.weight)


def _groups(asks: Sequence[SearchAsk]) -> list[SearchGroup]:
    """Group questions by index and filters, as they are now: an index that is replaced is searched to the
    end."""
    groups: dict[tuple[ServedCorpus, Filters], SearchGroup] = {}
    for place, ask in enumerate(asks):
        key = (ask.corpus, ask.retrieve.filters)
        if key not in groups:
            groups[key] = _group(*key)
        groups[key].places.append(place)
    return list(groups.values())


def _group(corpus: ServedCorpus, filters: Filters) -> SearchGroup:
    searched = corpus.searched
    assert searched is not None, "else the question is not asked"
    allowed, warning = searched.masks.allowed(filters), ""
    if unknown := searched.masks.unknown_fields(filters):
        warning = f"no document has the metadata {', '.join(unknown)}, by which passages were to be chosen"
    elif allowed is not None and not allowed.any():
        warning = "no passage has metadata that fits the filters"
    return SearchGroup(corpus.named.name, searched.index, allowed, warning, [])


def _depth(group: SearchGroup) -> int:
    return min(FIRST_STAGE_PASSAGES, len(group.index))


def _answer(
    group: SearchGroup,
    hits: Sequence[Hit],
    *,
    degraded: str = "",
    cut: bool = False,
    embed_us: int = 0,
    search_us: int = 0,
) -> Retrieved:
    """`cut`: of the question, its beginning was embedded alone."""
    passages = tuple(
        ScoredPassage(
            hit.source,
            hit.text,
            hit.score,
            hit.start,
            hit.end,
            hit.page,
            group.index.metadata_of(hit.row),
        )
        for hit in hits
    )
    warning = "; ".join(filter(None, (group.warning, TRUNCATED if cut else "")))
    return Retrieved(passages, degraded, embed_us, search_us, warning=warning, corpus=group.corpus)
