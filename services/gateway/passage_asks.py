"""What clients ask of retrievers alone: the passages that fit a question. For every edge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request_client import unexpected_answer
from services.gateway.retrieval_use import Filters, read_corpus_name, read_filters
from services.gateway.text_calls import TextCalls
from shared.api_key_file import ApiKey
from shared.deadline import Deadline
from shared.degradation import DegradationLevel
from shared.errors import InvalidRequest, NotFound, TooLarge
from shared.messages import Retrieve, Retrieved

RETRIEVER = "retriever"
DEFAULT_FOUND = 5
MAX_FOUND = 50
"""Passages of one call; a request, which has to read them, gets fewer."""
MAX_QUERY_CHARS = 16_384
NO_RERANK = "rerank"
"""What a retriever calls degraded that it has left out; no more than was asked for, where it was told to."""
NO_CORPUS = "no corpus"


class NoSuchCorpus(NotFound):
    """The tenant has no corpus of that name, or none at all."""

    code = "corpus_not_found"


@dataclass(frozen=True, slots=True)
class PassageQuery:
    """What passages are wanted; `rerank`: in the reranker's order, where the retriever has one."""

    query: str
    k: int = DEFAULT_FOUND
    corpus: str = ""
    filters: Filters = ()
    rerank: bool = True
    may_degrade: bool = True


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
    )


def check_query(query: str) -> int:
    """How many bytes it is."""
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
        under_pressure = self._calls.context.degradation.level >= DegradationLevel.RERANK
        question = Retrieve(
            asked.query,
            asked.k,
            asked.may_degrade,
            rerank=asked.rerank and not (asked.may_degrade and under_pressure),
            corpus=asked.corpus,
            tenant=key.tenant,
            filters=asked.filters,
        )
        ready = partial(self._calls.fleet.instances, RETRIEVER)
        with self._calls.admitted(key, check_query(asked.query), deadline) as call:
            try:
                found = await self._calls.ask_any(call, RETRIEVER, question, ready)
            except NotFound as error:
                raise NoSuchCorpus(error.message, hop=error.hop) from error
        if not isinstance(found, Retrieved):
            raise unexpected_answer(found, RETRIEVER)
        if found.degraded == NO_CORPUS:
            raise NoSuchCorpus("no documents are indexed: start the stack with --corpus", hop=RETRIEVER)
        return replace(found, degraded="") if found.degraded == NO_RERANK and not asked.rerank else found
