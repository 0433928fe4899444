"""Ask retrievers alone: for the passages that fit a question, for texts in the order of one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.asks.text_calls import TextCall, TextCalls, check_model_name, checked_bytes
from services.gateway.fleet.request_client import unexpected_answer
from services.gateway.request.request import served_model
from services.gateway.request.retrieval_use import read_corpus_name, read_filters, read_score_threshold
from services.gateway.tracing.text_call_record import RERANK, RETRIEVAL
from shared.bus.fleet import InstanceView
from shared.deadline import Deadline
from shared.degradation import DegradationLevel
from shared.errors import InvalidRequest, NotFound, TooLarge
from shared.files.api_key_file import ApiKey
from shared.messages import (
    MAX_QUERY_CHARS,
    MAX_RERANK_TEXTS,
    Filters,
    RerankTexts,
    Retrieve,
    Retrieved,
    TextScores,
)
from shared.tasks import cancel_until_done, start_task

RETRIEVER = "retriever"
DEFAULT_FOUND = 5
MAX_FOUND = 50
"""Passages of one call; a request, which has to read them, gets fewer."""
MAX_RANKED_TEXTS = 1024
"""The most texts of one call to rerank."""
NO_RERANK = "rerank"
"""The name of degradation by which a retriever says that it left reranking out; where it was told to, it is
none."""
NO_CORPUS = "no corpus"


class NoSuchCorpus(NotFound):
    """The tenant has no corpus of that name, or none at all."""

    code = "corpus_not_found"


@dataclass(frozen=True, slots=True)
class PassageQuery:
    """The passages that are wanted; `rerank`: in the reranker's order, where the retriever has one."""

    query: str
    k: int = DEFAULT_FOUND
    corpus: str = ""
    filters: Filters = ()
    rerank: bool = True
    may_degrade: bool = True
    score_threshold: float = 0.0


@dataclass(frozen=True, slots=True)
class RankedTexts:
    """`order` has the places of the wanted texts, best first; `scores` one for each text that was sent, the
    higher, the better. `tokens` were read in all, `truncated` are the places of texts that were longer than
    that, or whose question was."""

    model: str
    order: tuple[int, ...]
    scores: tuple[float, ...]
    tokens: int
    truncated: tuple[int, ...]

    @property
    def warning(self) -> str:
        """A warning for the client, "" for none."""
        if not self.truncated:
            return ""
        return (
            f"{len(self.truncated)} of the texts, the first of them texts[{self.truncated[0]}], were longer, "
            "with the query, than the reranker reads: they are ranked by what it read of them"
        )


def read_passage_query(asked: pb.RetrieveRequest) -> PassageQuery:
    """Raises InvalidRequest or TooLarge naming the field and what is allowed."""
    check_query(asked.query)
    if asked.HasField("k") and not 1 <= asked.k <= MAX_FOUND:
        raise InvalidRequest(f"k is {asked.k}: send an integer from 1 to {MAX_FOUND}")
    return PassageQuery(
        query=asked.query,
        k=asked.k if asked.HasField("k") else DEFAULT_FOUND,
        corpus=read_corpus_name(asked.corpus, "corpus"),
        filters=read_filters(asked.filters, "filters"),
        rerank=not asked.HasField("rerank") or asked.rerank,
        may_degrade=not asked.HasField("may_degrade") or asked.may_degrade,
        score_threshold=read_score_threshold(asked.score_threshold, "score_threshold"),
    )


def check_query(query: str) -> int:
    """Return the length of the query in bytes; raises InvalidRequest or TooLarge."""
    if not query.strip():
        raise InvalidRequest("query is blank: send some words to look for")
    if len(query) > MAX_QUERY_CHARS:
        raise TooLarge(f"query has {len(query)} characters: send at most {MAX_QUERY_CHARS}")
    try:
        return len(query.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest("query has lone surrogates: send valid Unicode") from error


class PassageAsks:
    """`key` is what `KeyGate.identify` found."""

    def __init__(self, calls: TextCalls) -> None:
        self._calls = calls

    async def retrieve(self, key: ApiKey, asked: PassageQuery, deadline: Deadline) -> Retrieved:
        """Best first; under pressure in the order in which they were found, where that will do.

        Raises NoSuchCorpus where there is nothing to search.
        """
        under_pressure = self._calls.context.degradation.highest >= DegradationLevel.RERANK
        question = Retrieve(
            asked.query,
            asked.k,
            asked.may_degrade,
            rerank=asked.rerank and not (asked.may_degrade and under_pressure),
            corpus=asked.corpus,
            tenant=key.tenant,
            filters=asked.filters,
            score_threshold=asked.score_threshold,
        )
        searching = partial(self._searching, asked.corpus)
        async with self._calls.admitted(key, check_query(asked.query), deadline, RETRIEVAL) as call:
            call.trace.corpus = asked.corpus
            try:
                found = await self._calls.ask_any(call, RETRIEVER, question, searching)
            except NotFound as error:
                raise NoSuchCorpus(error.message, hop=error.hop) from error
            if not isinstance(found, Retrieved):
                raise unexpected_answer(found, RETRIEVER)
            if found.degraded == NO_CORPUS:
                raise NoSuchCorpus(
                    "there are no documents to search, or none yet: start the stack with --corpus, or see in "
                    "`penstock status` what is indexed",
                    hop=RETRIEVER,
                )
        return replace(found, degraded="") if found.degraded == NO_RERANK and not asked.rerank else found

    async def rerank(
        self,
        key: ApiKey,
        model: str,
        query: str,
        texts: Sequence[str],
        deadline: Deadline,
        *,
        top_n: int | None = None,
    ) -> RankedTexts:
        """Rerank in parts: each retriever that has the reranker is asked for one after another, beside the
        others.

        Raises NotFound where none has it.
        """
        check_model_name(model)
        if top_n is not None and top_n < 1:
            raise InvalidRequest(f"top_n is {top_n}: send at least 1, or leave it out for all")
        text_bytes = check_query(query) + checked_bytes(texts, MAX_RANKED_TEXTS)
        parts = [
            RerankTexts(query, tuple(texts[start : start + MAX_RERANK_TEXTS]), key.tenant)
            for start in range(0, len(texts), MAX_RERANK_TEXTS)
        ]
        found: dict[int, TextScores] = {}
        async with self._calls.admitted(key, text_bytes, deadline, RERANK) as call:
            ready = partial(self._calls.fleet.instances, RETRIEVER)
            views = await self._calls.ready(call, RETRIEVER, ready)
            name = call.trace.model = _served_reranker(model, views)
            try:
                await self._score_parts(parts, call, found)
            finally:
                call.used_tokens = sum(sum(scores.tokens) for scores in found.values())
        return _ranked(name, [found[number] for number in range(len(parts))], top_n)

    async def _score_parts(
        self, parts: Sequence[RerankTexts], whole: TextCall, found: dict[int, TextScores]
    ) -> None:
        """Into `found`, by the number of the part; raises why one cannot be had."""
        waiting = iter(enumerate(parts))
        lanes = [
            start_task(self._score_lane(waiting, whole, found), name=f"rerank-{number}")
            for number in range(min(len(self._having(whole.trace.model)) or 1, len(parts)))
        ]
        try:
            await asyncio.wait(lanes, return_when=asyncio.FIRST_EXCEPTION)
            for lane in lanes:
                if lane.done():
                    lane.result()
        finally:
            await cancel_until_done(*lanes)

    async def _score_lane(
        self,
        waiting: Iterator[tuple[int, RerankTexts]],
        whole: TextCall,
        found: dict[int, TextScores],
    ) -> None:
        having = partial(self._having, whole.trace.model)
        with self._calls.begun(whole.deadline, whole.trace) as call:
            for number, part in waiting:
                answer = await self._calls.ask_any(call, RETRIEVER, part, having)
                if not isinstance(answer, TextScores) or not _fits(answer, len(part.texts)):
                    raise unexpected_answer(answer, RETRIEVER)
                found[number] = answer

    def _searching(self, corpus: str) -> Sequence[InstanceView]:
        """Retrievers that search it ("": any corpus); all of them where none does, to hear why."""
        views = self._calls.fleet.instances(RETRIEVER)
        return [
            view
            for view in views
            if any(told.generation and corpus in ("", told.name) for told in view.heartbeat.retriever.corpora)
        ] or views

    def _having(self, reranker: str) -> Sequence[InstanceView]:
        views = self._calls.fleet.instances(RETRIEVER)
        return [view for view in views if view.heartbeat.retriever.reranker == reranker]


def _served_reranker(model: str, views: Sequence[InstanceView]) -> str:
    """Scores may be compared where the reranker is the same."""
    served = {view.heartbeat.retriever.reranker for view in views} - {""}
    if not served:
        raise NotFound("no retriever has a reranker: set reranker under [retriever]", hop=RETRIEVER)
    return served_model(model, served)


def _fits(scores: TextScores, count: int) -> bool:
    columns = (scores.scores, scores.tokens, scores.truncated)
    return all(len(column) == count for column in columns) and all(map(math.isfinite, scores.scores))


def _ranked(model: str, parts: Sequence[TextScores], top_n: int | None) -> RankedTexts:
    """Order texts by score; of equal scores the earlier text comes first."""
    scores = [score for part in parts for score in part.scores]
    cut = [each for part in parts for each in part.truncated]
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    return RankedTexts(
        model=model,
        order=tuple(order[:top_n]),
        scores=tuple(scores),
        tokens=sum(sum(part.tokens) for part in parts),
        truncated=tuple(place for place, each in enumerate(cut) if each),
    )
