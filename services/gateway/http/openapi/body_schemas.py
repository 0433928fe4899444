"""Schemas of the bodies that pages read, by name. Limits are the constants by which bodies are checked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from services.gateway.asks.passage_asks import MAX_FOUND, MAX_RANKED_TEXTS
from services.gateway.asks.text_asks import MAX_DETOKENIZE_IDS, MAX_EMBEDDED_TEXTS
from services.gateway.http.fields.chat_tools import CHOICES
from services.gateway.http.fields.sampling_fields import ANSWER_FORMATS, LENGTHS, TOKEN_IDS
from services.gateway.http.openapi.sampling_schemas import (
    agent_session,
    ask_options,
    cache_options,
    dynamo_extension,
    penstock_options,
    retrieval_options,
    sampling_properties,
    thinking_options,
    trimming_options,
)
from services.gateway.http.openapi.schema_parts import (
    Schema,
    any_of,
    array,
    body_of,
    choice,
    flag,
    integer,
    number_within,
    or_null,
    ref,
    some_text,
    text,
)
from services.gateway.http.responses.response_input import ITEM_TYPES, TEXT_PARTS
from services.gateway.http.responses.responses import (
    LENGTHS as RESPONSE_LENGTHS,
)
from services.gateway.http.responses.responses import (
    MAX_METADATA_CHARS,
    MAX_METADATA_ENTRIES,
    MAX_METADATA_NAME_CHARS,
    TRUNCATIONS,
)
from services.gateway.http.text_pages import VECTOR_FORMATS
from services.gateway.http.vector_store_pages import (
    COMPARISONS,
    MAX_QUERIES,
    NO_RANKER,
    RANKERS,
    SCORES,
)
from services.gateway.request.chat_prompt import MAX_CHAT_MESSAGES, MAX_TOOLS
from services.gateway.request.choices import MAX_CHOICES
from services.gateway.request.request import MAX_MODEL_CHARS
from shared.messages import MAX_FILTERS, MAX_QUERY_CHARS
from shared.sampling.parameters import MAX_TOP_LOGPROBS
from shared.text.chat_roles import CHAT_ROLES

_MODEL = text("its name, as /v1/models has it; may be absent where one is served", most=MAX_MODEL_CHARS)
_DEADLINE = ref("AskOptions")
_OBJECT: Schema = {"type": "object"}
_IDS = array(number_within(TOKEN_IDS), least=1)


@cache
def body_schemas() -> Mapping[str, Schema]:
    """Return the schemas by their names; they are computed once, for whoever describes a gateway."""
    return {
        "PenstockOptions": penstock_options(),
        "AgentSession": agent_session(),
        "Thinking": thinking_options(),
        "DynamoExtension": dynamo_extension(),
        "AskOptions": ask_options(),
        "Retrieval": retrieval_options(),
        "Trimming": trimming_options(),
        "Cache": cache_options(),
        "ChatMessage": _chat_message(),
        "ToolCall": _tool_call(),
        "Tool": _tool(),
        "AnswerFormat": _answer_format(),
        "StreamOptions": body_of({"include_usage": flag(), "continuous_usage_stats": flag()}),
        "ChatBody": _chat_body(),
        "CompletionBody": _completion_body(),
        "ResponseBody": _response_body(),
        "EmbeddingBody": _embedding_body(),
        "TokenizeBody": _tokenize_body(),
        "DetokenizeBody": body_of(
            {
                "model": _MODEL,
                "tokens": array(number_within(TOKEN_IDS), least=1, most=MAX_DETOKENIZE_IDS),
                "penstock": _DEADLINE,
            },
            "tokens",
        ),
        "RerankBody": _rerank_body(),
        "SearchBody": _search_body(),
    }


# ---- what generates -------------------------------------------------------------------------------------


def _chat_body() -> Schema:
    made = {
        "model": _MODEL,
        "messages": array(ref("ChatMessage"), least=1, most=MAX_CHAT_MESSAGES),
        **_tool_fields(ref("Tool")),
        "n": integer(1, MAX_CHOICES, "how many answers"),
        "logprobs": flag("log-probabilities of the tokens"),
        "top_logprobs": integer(0, MAX_TOP_LOGPROBS, "likeliest others of each token; needs logprobs"),
        "stream": flag("events in place of one answer"),
        "stream_options": ref("StreamOptions"),
        "response_format": ref("AnswerFormat"),
        **sampling_properties(LENGTHS),
    }
    return body_of(made, "messages")


def _completion_body() -> Schema:
    prompt = any_of(
        text(), array(text(), least=1), _IDS, array(_IDS, least=1), help_text="a text, its ids, or several"
    )
    made = {
        "model": _MODEL,
        "prompt": prompt,
        "n": integer(1, MAX_CHOICES, "how many answers to each prompt"),
        "best_of": integer(1, MAX_CHOICES, "as n: nothing is drawn to be thrown away"),
        "echo": flag("the prompt stands before the answer"),
        "suffix": {"const": "", "description": "none: a text is continued alone"},
        "logprobs": integer(0, MAX_TOP_LOGPROBS, "likeliest others of each token"),
        "stream": flag("events in place of one answer"),
        "stream_options": ref("StreamOptions"),
        "response_format": ref("AnswerFormat"),
        **sampling_properties(LENGTHS),
    }
    return body_of(made, "prompt")


def _response_body() -> Schema:
    item = body_of(
        {
            "type": choice(ITEM_TYPES),
            "role": text(),
            "content": _content(),
            "call_id": text(),
            "name": text(),
            "arguments": text(),
            "output": _content(),
        }
    )
    made = {
        "model": _MODEL,
        "instructions": text(),
        "input": any_of(text(least=1), array(item, least=1)),
        **_tool_fields(body_of(_function_fields() | {"type": {"const": "function"}}, "type", "name")),
        "text": body_of({"format": _format_beside_its_type()}),
        "include": any_of(text(), array(text())),
        "top_logprobs": integer(0, MAX_TOP_LOGPROBS),
        "metadata": {
            "type": "object",
            "maxProperties": MAX_METADATA_ENTRIES,
            "propertyNames": {"maxLength": MAX_METADATA_NAME_CHARS},
            "additionalProperties": or_null(text(most=MAX_METADATA_CHARS)),
        },
        "truncation": choice(TRUNCATIONS, "auto: without the oldest turns where all have no room"),
        "store": flag("a wish: nothing is kept"),
        "stream": flag("events in place of one answer"),
        **sampling_properties(RESPONSE_LENGTHS),
    }
    return body_of(made, "input")


def _chat_message() -> Schema:
    made = {
        "role": choice(CHAT_ROLES),
        "content": _content(),
        "name": text(),
        "tool_calls": array(ref("ToolCall")),
        "tool_call_id": text(),
        "reasoning_content": text("what an assistant thought before that"),
    }
    return body_of(made, "role")


def _content() -> Schema:
    part = {
        "type": "object",
        "properties": {"type": choice(TEXT_PARTS), "text": or_null(text())},
        "required": ["type"],
    }
    return any_of(text(), array(part))


def _tool_call() -> Schema:
    function = body_of({"name": text(), "arguments": text("JSON")}, "name")
    return body_of({"id": text(), "type": {"const": "function"}, "function": function}, "function")


def _tool() -> Schema:
    function = body_of(_function_fields(), "name")
    return body_of({"type": {"const": "function"}, "function": function}, "function")


def _function_fields() -> dict[str, Schema]:
    return {"name": text(least=1), "description": text(), "parameters": _OBJECT}


def _tool_fields(tool: Schema) -> dict[str, Schema]:
    return {
        "tools": array(tool, most=MAX_TOOLS),
        "tool_choice": any_of(choice(CHOICES), _OBJECT, help_text="a word, or the function to call"),
        "parallel_tool_calls": flag(),
    }


def _answer_format() -> Schema:
    schema = body_of({"name": text(), "schema": _OBJECT}, "schema")
    return body_of({"type": choice(ANSWER_FORMATS), "json_schema": schema})


def _format_beside_its_type() -> Schema:
    return body_of({"type": choice(ANSWER_FORMATS), "name": text(), "schema": _OBJECT})


# ---- what generates nothing -----------------------------------------------------------------------------


def _embedding_body() -> Schema:
    texts = any_of(some_text(), array(some_text(), least=1, most=MAX_EMBEDDED_TEXTS))
    made = {
        "model": _MODEL,
        "input": texts,
        "encoding_format": choice(VECTOR_FORMATS),
        "dimensions": integer(1, 1 << 20, "as the model has: vectors are not cut"),
        "penstock": _DEADLINE,
    }
    return body_of(made, "input")


def _tokenize_body() -> Schema:
    made = {
        "model": _MODEL,
        "prompt": text(),
        "messages": array(ref("ChatMessage"), least=1, most=MAX_CHAT_MESSAGES),
        **_tool_fields(ref("Tool")),
        "add_special_tokens": flag("those that the model's prompts begin with"),
        "penstock": _DEADLINE,
    }
    return body_of(made)


def _rerank_body() -> Schema:
    document = any_of(text(), body_of({"text": text()}, "text"))
    documents = array(document, least=1, most=MAX_RANKED_TEXTS)
    made = {
        "model": _MODEL,
        "query": some_text(most=MAX_QUERY_CHARS),
        "documents": documents,
        "texts": documents,
        "top_n": integer(1, 2**31 - 1),
        "rank_fields": any_of({"const": "text"}, array({"const": "text"})),
        "return_documents": flag(),
        "return_text": flag(),
        "raw_scores": flag("scores as the reranker gives them, not from 0 to 1"),
        "truncate": flag("false: refuse texts that are too long"),
        "truncation_direction": text("right"),
        "penstock": _DEADLINE,
    }
    both = {"required": ["documents", "texts"]}
    return body_of(made, "query") | {"not": both}


def _search_body() -> Schema:
    query = some_text(most=MAX_QUERY_CHARS)
    comparison = {
        "type": "object",
        "properties": {"type": choice(COMPARISONS), "key": text(), "value": {}},
        "required": ["type", "key", "value"],
    }
    both = {
        "type": "object",
        "properties": {"type": {"const": "and"}, "filters": array(comparison, most=MAX_FILTERS)},
        "required": ["type", "filters"],
    }
    rankers = choice((*RANKERS, NO_RANKER))
    ranking = body_of({"ranker": rankers, "score_threshold": number_within(SCORES)}, closed=True)
    made = {
        "query": any_of(query, array(query, least=1, most=MAX_QUERIES)),
        "max_num_results": integer(1, MAX_FOUND),
        "filters": any_of(comparison, both),
        "ranking_options": ranking,
        "rewrite_query": {"const": False, "description": "the query is searched for as it comes"},
        "penstock": _DEADLINE,
    }
    return body_of(made, "query")
