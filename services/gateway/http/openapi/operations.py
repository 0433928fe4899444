"""The operation of each route of the edge."""

from __future__ import annotations

from services.gateway.http.openapi.operation import Access, Operation

_ASKED = (400, 404, 408, 413, 415, 429, 499, 503, 504)
"""The statuses of what asks the fleet for something by a body; a 500 would be a bug."""
_HTML, _TEXT = "text/html", "text/plain"
_MODELS, _RETRIEVAL, _TEXTS = "generate", "retrieve", "texts"
_OPERATE, _HEALTH, _PEOPLE = "operate", "health", "pages"

CHAT = Operation(
    *("chat", _MODELS, "Answer a chat"),
    body="ChatBody",
    answer="ChatAnswer",
    streams=True,
    statuses=_ASKED,
)
COMPLETE = Operation(
    *("complete", _MODELS, "Continue a text"),
    body="CompletionBody",
    answer="CompletionAnswer",
    streams=True,
    statuses=_ASKED,
)
RESPOND = Operation(
    *("respond", _MODELS, "Answer as OpenAI's responses do; nothing is kept"),
    body="ResponseBody",
    answer="ResponseAnswer",
    streams=True,
    statuses=_ASKED,
)
CANCEL = Operation(
    *("cancel", _MODELS, "Cancel a running request by its id, or by the header x-request-id of its answer"),
    answer="CancelAnswer",
    statuses=(404, 503),
)
MODELS = Operation("listModels", _MODELS, "List models, generating ones first", answer="ModelList")
MODEL = Operation(
    "showModel", _MODELS, "Show a model or an adapter", answer="Model", statuses=(400, 404, 503)
)
EMBED = Operation(
    *("embed", _TEXTS, "Make vectors of texts"),
    body="EmbeddingBody",
    answer="EmbeddingAnswer",
    statuses=_ASKED,
)
TOKENIZE = Operation(
    *("tokenize", _TEXTS, "Make token ids of a text or a chat"),
    body="TokenizeBody",
    answer="TokenizeAnswer",
    statuses=_ASKED,
)
DETOKENIZE = Operation(
    *("detokenize", _TEXTS, "Make text of token ids"),
    body="DetokenizeBody",
    answer="DetokenizeAnswer",
    statuses=_ASKED,
)
RERANK = Operation(
    *("rerank", _RETRIEVAL, "Put texts in the order in which they answer a query"),
    body="RerankBody",
    answer="RerankAnswer",
    statuses=_ASKED,
)
SEARCH = Operation(
    *("search", _RETRIEVAL, "Find passages of a corpus, which OpenAI calls a vector store"),
    body="SearchBody",
    answer="SearchAnswer",
    statuses=_ASKED,
)
VERSION = Operation(
    *("version", _OPERATE, "Say the version, the digest of the bus messages, and what is served"),
    answer="Version",
)
METRICS = Operation(
    *("metrics", _OPERATE, "Show this gateway's metrics for Prometheus"),
    access=Access.OPERATOR,
    answer_type=_TEXT,
)
ACCESS = Operation("access", _OPERATE, "Say whose the key is", answer="Access")
PIPELINE = Operation(
    *("pipeline", _OPERATE, "Show services, instances, queues, pressure and latencies"),
    access=Access.OPERATOR,
    answer="Pipeline",
)
REQUESTS = Operation(
    *("requests", _OPERATE, "Show running requests, and the last ones with their timelines"),
    access=Access.OPERATOR,
    answer="Requests",
)
HEALTH = Operation("health", _HEALTH, "Answer", access=Access.ANYBODY, answer_type=_TEXT)
READY = Operation(
    *("ready", _HEALTH, "Say whether requests are taken"),
    access=Access.ANYBODY,
    answer_type=_TEXT,
    statuses=(503,),
)
OPENAPI = Operation("openapi", _PEOPLE, "This document", access=Access.ANYBODY)
DOCS = Operation("docs", _PEOPLE, "Show this document", access=Access.ANYBODY, answer_type=_HTML)
CONSOLE = Operation("console", _PEOPLE, "Show the console", access=Access.ANYBODY, answer_type=_HTML)
FILE = Operation(
    *("file", _PEOPLE, "A file of the console"),
    access=Access.ANYBODY,
    answer_type="*/*",
    statuses=(404,),
)
