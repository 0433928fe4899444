"""`/v1/rerank`, `/v2/rerank` and `/rerank`: texts in the order in which they answer a query.

Whoever sends `documents` gets what Cohere's and Jina's servers answer, with scores from 0 to 1; whoever sends
`texts`, the bare list of Hugging Face's text-embeddings-inference.
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

from aiohttp import web

from services.gateway.asks.passage_asks import MAX_RANKED_TEXTS, PassageAsks, RankedTexts
from services.gateway.config import GatewayConfig
from services.gateway.http.ask_pages import AskPages
from services.gateway.http.completions.call import HttpCall
from services.gateway.http.fields.json_fields import JsonFields, WrongField
from services.gateway.http.fields.penstock_options import FIELD
from services.gateway.session.ingress import Ingress
from shared.deadline import Deadline
from shared.errors import TooLarge
from shared.files.api_key_file import ApiKey
from shared.seams.chance import CHANCE

ID_PREFIX = "rerank-"
DOCUMENTS, TEXTS = "documents", "texts"
RANKED_FIELD = "text"
"""The field of a document that is an object."""
CUT_SIDE = "right"
"""A text that is longer than what is read loses its end."""
INT32_MAX = 2**31 - 1
_TEXTS_NAME = re.compile(r"^texts(?=\[| has )")


class RerankPages(AskPages):
    def __init__(self, ingress: Ingress, passage_asks: PassageAsks, config: GatewayConfig) -> None:
        super().__init__(ingress, config)
        self._passage_asks = passage_asks

    async def rerank(self, call: HttpCall, version: str) -> web.Response:
        """`version` is that of the interface."""
        names = [(_TEXTS_NAME, DOCUMENTS)]
        return await self._answer(call, partial(self._rerank, version, names), names)

    async def _rerank(
        self,
        version: str,
        names: list[tuple[re.Pattern[str], str]],
        key: ApiKey,
        body: JsonFields,
        deadline: Deadline,
    ) -> Any:
        """`names` keeps to what the body calls them."""
        if body.has(TEXTS):
            names.clear()
        texts = _read_texts(body)
        _check_cut(body)
        top_n = body.integer("top_n", 1, INT32_MAX, INT32_MAX)
        query = body.text("query")
        returned = [body.flag(name) for name in ("return_text", "return_documents")]
        shown = texts if any(returned) else None
        raw, cuts = body.flag("raw_scores"), body.flag("truncate", default=True)
        found = await self._passage_asks.rerank(key, body.text("model"), query, texts, deadline, top_n=top_n)
        if found.truncated and not cuts:
            raise TooLarge(f"{found.warning}. Send shorter ones, or truncate true")
        if body.has(TEXTS):
            return _bare_list(found, shown, raw=raw)
        return _answer_of(found, shown, version, raw=raw)


def _read_texts(body: JsonFields) -> list[str]:
    """Return the texts of `documents` or `texts`, whichever there is."""
    if body.has(DOCUMENTS) == body.has(TEXTS):
        found = "stands beside" if body.has(TEXTS) else "is missing, and so is"
        raise WrongField(DOCUMENTS, f"{found} {TEXTS}: send one of the two")
    name = TEXTS if body.has(TEXTS) else DOCUMENTS
    documents = body.array(name)
    if not 1 <= len(documents) <= MAX_RANKED_TEXTS:
        raise WrongField(name, f"has {len(documents)} texts: send 1 to {MAX_RANKED_TEXTS}")
    for field in body.strings("rank_fields"):
        if field != RANKED_FIELD:
            raise body.wrong("rank_fields", f'["{RANKED_FIELD}"]: nothing else of a document is read')
    return [_text(body, f"{name}[{place}]", document) for place, document in enumerate(documents)]


def _text(body: JsonFields, name: str, document: Any) -> str:
    text = document.get(RANKED_FIELD) if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise body.wrong(name, f'a text, or an object with one as "{RANKED_FIELD}"', document)
    return text


def _check_cut(body: JsonFields) -> None:
    if body.text("truncation_direction", CUT_SIDE).lower() != CUT_SIDE:
        raise body.wrong("truncation_direction", f"{CUT_SIDE}: what is too long is read from its beginning")


# ---- answers --------------------------------------------------------------------------------------------


def _bare_list(found: RankedTexts, texts: list[str] | None, *, raw: bool) -> list[dict[str, Any]]:
    return [
        {
            "index": place,
            "score": _relevance(found.scores[place], raw=raw),
            **({} if texts is None else {"text": texts[place]}),
        }
        for place in found.order
    ]


def _answer_of(found: RankedTexts, texts: list[str] | None, version: str, *, raw: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "id": f"{ID_PREFIX}{CHANCE.hex_digits(12)}",
        "model": found.model,
        "results": [
            {
                "index": place,
                "relevance_score": _relevance(found.scores[place], raw=raw),
                **({} if texts is None else {"document": {"text": texts[place]}}),
            }
            for place in found.order
        ],
        "usage": {"prompt_tokens": found.tokens, "total_tokens": found.tokens},
        "meta": {
            "api_version": {"version": version.removeprefix("v")},
            "tokens": {"input_tokens": found.tokens, "output_tokens": 0},
        },
    }
    if found.truncated:
        answer["meta"]["warnings"] = [found.warning]
        answer[FIELD] = {"truncated": list(found.truncated)}
    return answer


def _relevance(score: float, *, raw: bool) -> float:
    """Map scores to 0..1 by the logistic function, in the same order; `raw` leaves them as they are."""
    if raw:
        return score
    smaller = math.exp(-abs(score))
    return (1.0 if score >= 0 else smaller) / (1.0 + smaller)
