"""`/v1/vector_stores/{corpus}/search`, in OpenAI's shape: what it calls a vector store is a corpus here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.asks.passage_asks import MAX_FOUND, PassageAsks, PassageQuery, check_query
from services.gateway.config import GatewayConfig
from services.gateway.http.ask_pages import AskPages
from services.gateway.http.completions.call import HttpCall
from services.gateway.http.completions.error_object import FieldNames
from services.gateway.http.fields.json_fields import JsonFields, WrongField
from services.gateway.http.fields.penstock_options import FIELD
from services.gateway.request.prompt_passages import joined_warnings
from services.gateway.request.retrieval_use import read_corpus_name, read_filters
from services.gateway.session.ingress import Ingress
from shared.deadline import Deadline
from shared.files.api_key_file import ApiKey
from shared.messages import MAX_FILTERS, Filters, Retrieved, ScoredPassage
from shared.sampling.parameters import Bounds
from shared.text.passage_source import document_of

DEFAULT_RESULTS = 10
"""OpenAI has the same default."""
MAX_QUERIES = 8
"""The most questions of one search."""
RANKERS = ("auto", "default-2024-11-15")
"""OpenAI's names for its rerankers; here they mean the one that there is."""
NO_RANKER = "none"
SCORES = Bounds(0.0, 1.0)
COMPARISONS = ("eq", "in")
_NAMES: FieldNames = ((re.compile(r"^corpus(?= has )"), "vector_store_id"),)


@dataclass(frozen=True, slots=True)
class _Result:
    passage: ScoredPassage
    score: float


class VectorStorePages(AskPages):
    def __init__(self, ingress: Ingress, passage_asks: PassageAsks, config: GatewayConfig) -> None:
        super().__init__(ingress, config)
        self._passage_asks = passage_asks

    async def search(self, call: HttpCall, corpus: str) -> web.Response:
        return await self._answer(call, partial(self._search, corpus), _NAMES)

    async def _search(
        self, corpus: str, key: ApiKey, body: JsonFields, deadline: Deadline
    ) -> Mapping[str, Any]:
        """Several queries are asked one after another, each of them a call in the limits of the key."""
        queries, asked = _read_search(body, corpus)
        found = [
            await self._passage_asks.retrieve(key, PassageQuery(query, **asked), deadline)
            for query in queries
        ]
        results = _joined(found)[: asked["k"]]
        return {
            "object": "vector_store.search_results.page",
            "search_query": queries,
            "data": [_shown(result) for result in results],
            "has_more": False,
            "next_page": None,
            FIELD: {
                "degraded": next((each.degraded for each in found if each.degraded), ""),
                "warning": joined_warnings(*(each.warning for each in found)),
            },
        }


def _read_search(body: JsonFields, corpus: str) -> tuple[list[str], dict[str, Any]]:
    """The queries, and what they share of a PassageQuery."""
    queries = body.strings("query")
    if not 1 <= len(queries) <= MAX_QUERIES:
        raise body.wrong("query", f"a text, or an array of 1 to {MAX_QUERIES}")
    for query in queries:
        check_query(query)
    if body.flag("rewrite_query"):
        raise body.wrong("rewrite_query", "false: what is searched for is the query as it comes")
    return queries, {
        "k": body.integer("max_num_results", 1, MAX_FOUND, DEFAULT_RESULTS),
        "corpus": read_corpus_name(corpus, "corpus"),
        "filters": _read_filters(body),
        **_read_ranking(body.object("ranking_options")),
    }


def _read_ranking(options: JsonFields) -> dict[str, Any]:
    for name in options.names():
        if name not in ("ranker", "score_threshold"):
            raise WrongField(options.param(name), "is no option here: send ranker or score_threshold")
    ranker = options.text("ranker", RANKERS[0])
    if ranker not in (*RANKERS, NO_RANKER):
        raise options.wrong("ranker", f"one of {', '.join((*RANKERS, NO_RANKER))}")
    threshold = options.number("score_threshold", SCORES)
    return {"rerank": ranker != NO_RANKER, "score_threshold": threshold or 0.0}


# ---- filters --------------------------------------------------------------------------------------------


def _read_filters(body: JsonFields) -> Filters:
    """One comparison, or several of which all have to hold; raises WrongField for what a corpus cannot do."""
    if not body.has("filters"):
        return ()
    given = body.object("filters")
    comparisons = given.objects("filters") if given.value("type") == "and" else [given]
    if len(comparisons) > MAX_FILTERS:
        problem = f"has {len(comparisons)} comparisons: send at most {MAX_FILTERS}"
        raise WrongField(given.param("filters"), problem)
    return read_filters(map(_comparison, comparisons), "filters")


def _comparison(given: JsonFields) -> pb.MetadataFilter:
    kind, value = given.value("type"), given.value("value")
    if not isinstance(kind, str) or kind not in COMPARISONS:
        allowed = ", ".join(COMPARISONS)
        raise given.wrong("type", f"one of {allowed}, or at the top an and of these")
    if (kind == "in") != isinstance(value, list):
        raise given.wrong("value", "an array of values" if kind == "in" else "a value, or an in with several")
    values = value if isinstance(value, list) else [value]
    return pb.MetadataFilter(field=given.text("key"), values=[_as_text(given, each) for each in values])


def _as_text(given: JsonFields, value: Any) -> str:
    """Return the value as the text that metadata has for it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float | str):
        return str(value)
    raise given.wrong("value", "texts, numbers, true or false")


# ---- results --------------------------------------------------------------------------------------------


def _joined(found: Sequence[Retrieved]) -> list[_Result]:
    """Best first. A passage that several queries find has the highest of its scores, the estimate that it
    answers one of them, so that a threshold holds of what is shown; of equal ones that comes first which is
    early for many: by the mean of one over its ranks."""
    if len(found) == 1:
        return [_Result(passage, passage.score) for passage in found[0].passages]
    shares: dict[tuple[str, int, int, str], float] = {}
    best: dict[tuple[str, int, int, str], ScoredPassage] = {}
    for each in found:
        for rank, passage in enumerate(each.passages, start=1):
            place = (passage.source, passage.start, passage.end, passage.text)
            shares[place] = shares.get(place, 0.0) + 1 / (rank * len(found))
            if place not in best or passage.score > best[place].score:
                best[place] = passage
    places = sorted(best, key=lambda place: (-best[place].score, -shares[place]))
    return [_Result(best[place], best[place].score) for place in places]


def _shown(result: _Result) -> dict[str, Any]:
    passage = result.passage
    name = document_of(passage.source)
    return {
        "file_id": name,
        "filename": name,
        "score": result.score,
        "attributes": dict(passage.metadata),
        "content": [{"type": "text", "text": passage.text}],
        FIELD: {
            "source": passage.source,
            "start": passage.start,
            "end": passage.end,
            "page": passage.page,
        },
    }
