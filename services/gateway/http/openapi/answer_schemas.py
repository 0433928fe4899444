"""Schemas of the answers that pages write, by name. A test holds each of them against what is written."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.completions.chat import ChatShape
from services.gateway.http.completions.choice import FINISH_REASONS
from services.gateway.http.completions.text_completion import TextShape
from services.gateway.http.openapi.schema_parts import (
    Schema,
    answer_of,
    any_of,
    array,
    choice,
    flag,
    integer,
    or_null,
    ref,
    text,
)
from services.gateway.http.responses.response_items import (
    CALL_ID_PREFIX,
    MESSAGE_ID_PREFIX,
    REASONING_ID_PREFIX,
)
from services.gateway.http.responses.response_object import ID_PREFIX as RESPONSE_ID_PREFIX
from services.gateway.http.text_pages import VECTOR_FORMATS
from services.gateway.request.model_choice import PASSED_OVER
from services.gateway.scope.outcome import CANCELLED, EXPIRED, FAILED, FINISHED, SHED
from services.gateway.scope.session_state import RequestPhase
from services.gateway.tracing.ended_requests import VIEWS
from shared.degradation import DegradationLevel
from shared.roles import ROLES

_COUNT = integer(0)
_NUMBER: Schema = {"type": "number"}
_ENDS = ("stop", *FINISH_REASONS.values())


@cache
def answer_schemas() -> Mapping[str, Schema]:
    """Return the schemas by their names; they are computed once, for whoever describes a gateway."""
    return {
        "Error": _error(),
        **_shared_schemas(),
        "ChatAnswer": _completion(ChatShape.object_name, _chat_choice()),
        "CompletionAnswer": _completion(TextShape.object_name, _text_choice()),
        "ResponseAnswer": _response(),
        "EmbeddingAnswer": _embeddings(),
        "TokenizeAnswer": answer_of(
            {"tokens": array(_COUNT), "count": _COUNT, "max_model_len": or_null(_COUNT)}
        ),
        "DetokenizeAnswer": answer_of({"prompt": text()}),
        "RerankAnswer": any_of(_ranked(), array(_ranked_text())),
        "SearchAnswer": _search(),
        "Model": _model(),
        "ModelList": answer_of({"object": {"const": "list"}, "data": array(ref("Model"))}),
        "CancelAnswer": answer_of(
            {"id": text(), "object": {"const": "request.cancelled"}, "cancelled": {"const": True}}
        ),
        "Version": answer_of({"version": text(), "protocol": text(), "models": array(text())}),
        "Access": answer_of({"keys": flag(), "tenant": text(), "operator": flag()}),
        "Instance": _instance(),
        "Pipeline": _pipeline(),
        "Requests": _requests(),
    }


def message_schema(message: type[Message]) -> Schema:
    """Return the schema of a message of the gRPC contract as it is written under `penstock`."""
    return answer_of({field.name: _field(field) for field in message.DESCRIPTOR.fields})


def _field(field: Any) -> Schema:
    """`field` is a descriptor, of which the library has two kinds."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": text()}
    if field.message_type is not None:
        inner = answer_of({each.name: _field(each) for each in field.message_type.fields})
        return array(inner) if field.is_repeated else inner
    made: Schema = {
        FieldDescriptor.CPPTYPE_STRING: text(),
        FieldDescriptor.CPPTYPE_UINT32: _COUNT,
        FieldDescriptor.CPPTYPE_FLOAT: _NUMBER,
        FieldDescriptor.CPPTYPE_BOOL: flag(),
    }[field.cpp_type]
    return array(made) if field.is_repeated else made


def _error() -> Schema:
    error = answer_of(
        {
            "message": text("what is wrong and what to do"),
            "type": text(),
            "param": or_null(text("the field that it is about")),
            "code": text(),
            "hop": or_null(text("where it happened")),
        }
    )
    return answer_of({"error": error})


def _shared_schemas() -> dict[str, Schema]:
    phase = answer_of({"name": text(), "start_us": _COUNT, "duration_us": _COUNT})
    times = {"ttft_us": _COUNT, "total_us": _COUNT, "useful_us": _COUNT}
    timeline = answer_of({**times, "region": text(), "phases": array(phase)})
    cached = answer_of({"request_id": text(), "age_ms": _COUNT, "similarity": _NUMBER})
    request = answer_of(
        {
            "index": _COUNT,
            "request_id": text(),
            "seed": integer(),
            "degraded": text("what was left out under pressure"),
            "warning": text(),
            "retrieval_query": text(),
            "passages": array(ref("Passage")),
            "citations": array(ref("Citation")),
            "usage": ref("RequestUsage"),
            "cached": cached,
            "coalesced_with": text(
                "the request that computed the answer, where one that is the same was in flight"
            ),
            "trimmed": array(ref("TrimmedPart")),
            "model_choice": ref("ModelChoice"),
            "timeline": ref("Timeline"),
        },
        *("cached", "coalesced_with", "trimmed", "model_choice", "timeline"),
    )
    skipped = answer_of({"model": text(), "why": choice(PASSED_OVER)})
    model_choice = answer_of(
        {
            "asked": text("the model that the request named"),
            "model": text("the one that answered"),
            "rule": text("which chose it; empty: the request itself did"),
            "why": text("a sentence"),
            "hardness": _NUMBER,
            "skipped": array(skipped),
        },
        "hardness",
    )
    usage = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), _COUNT)
    details = {
        "prompt_tokens_details": answer_of({"cached_tokens": _COUNT}),
        "completion_tokens_details": answer_of({"reasoning_tokens": _COUNT}),
    }
    return {
        "ModelChoice": model_choice,
        "Timeline": timeline,
        "Passage": message_schema(pb.RetrievedPassage),
        "TrimmedPart": message_schema(pb.TrimmedPart),
        "Citation": message_schema(pb.Citation),
        "RequestUsage": message_schema(pb.Usage),
        "PenstockPart": answer_of({"requests": array(request)}),
        "TokenUsage": answer_of({**usage, **details}, *details),
        "TokenLogprob": _token_logprob(),
    }


def _token_logprob() -> Schema:
    shown = {"token": text(), "logprob": or_null(_NUMBER), "bytes": or_null(array(integer(0, 255)))}
    return answer_of({**shown, "top_logprobs": array(answer_of(shown))})


# ---- what generates -------------------------------------------------------------------------------------


def _completion(name: str, one: Schema) -> Schema:
    made = {
        "id": text(),
        "object": {"const": name},
        "created": _COUNT,
        "model": text(),
        "choices": array(one, least=1),
        "usage": ref("TokenUsage"),
        "penstock": ref("PenstockPart"),
    }
    return answer_of(made, "penstock")


def _chat_choice() -> Schema:
    function = answer_of({"name": text(), "arguments": text()})
    call = answer_of({"id": text(), "type": {"const": "function"}, "function": function})
    message = answer_of(
        {
            "role": {"const": "assistant"},
            "content": or_null(text()),
            "refusal": {"type": "null"},
            "reasoning_content": text("what the model thought before it answered"),
            "tool_calls": array(call),
        },
        *("reasoning_content", "tool_calls"),
    )
    logprobs = answer_of({"content": array(ref("TokenLogprob")), "refusal": {"type": "null"}})
    return answer_of(
        {
            "index": _COUNT,
            "message": message,
            "logprobs": or_null(logprobs),
            "finish_reason": choice(dict.fromkeys(_ENDS)),
        }
    )


def _text_choice() -> Schema:
    number = or_null(_NUMBER)
    logprobs = answer_of(
        {
            "tokens": array(text()),
            "token_logprobs": array(number),
            "top_logprobs": array({"type": ["object", "null"], "additionalProperties": _NUMBER}),
            "text_offset": array(_COUNT),
        }
    )
    return answer_of(
        {
            "index": _COUNT,
            "text": text(),
            "logprobs": or_null(logprobs),
            "finish_reason": choice(dict.fromkeys(_ENDS)),
        }
    )


def _response() -> Schema:
    item = any_of(
        answer_of(
            {
                "id": {"type": "string", "pattern": f"^{MESSAGE_ID_PREFIX}"},
                "type": {"const": "message"},
                "role": {"const": "assistant"},
                "status": text(),
                "content": array({"type": "object"}),
            }
        ),
        answer_of(
            {
                "id": {"type": "string", "pattern": f"^{REASONING_ID_PREFIX}"},
                "type": {"const": "reasoning"},
                "status": text(),
                "summary": array({"type": "object"}),
                "content": array({"type": "object"}),
            }
        ),
        answer_of(
            {
                "id": {"type": "string", "pattern": f"^{CALL_ID_PREFIX}"},
                "type": {"const": "function_call"},
                "status": text(),
                "call_id": text(),
                "name": text(),
                "arguments": text(),
            }
        ),
    )
    names = ("input_tokens", "output_tokens", "total_tokens")
    made = {
        "id": {"type": "string", "pattern": f"^{RESPONSE_ID_PREFIX}"},
        "object": {"const": "response"},
        "created_at": _COUNT,
        "status": text(),
        "error": {"type": ["object", "null"]},
        "incomplete_details": {"type": ["object", "null"]},
        "model": text(),
        "output": array(item),
        "max_output_tokens": _COUNT,
        "temperature": or_null(_NUMBER),
        "top_p": or_null(_NUMBER),
        "usage": or_null(answer_of(dict.fromkeys(names, _COUNT))),
    }
    return answer_of(made)


# ---- what generates nothing -----------------------------------------------------------------------------


def _embeddings() -> Schema:
    vector = any_of(array(_NUMBER), text("float32, little-endian, in base64"))
    row = answer_of({"object": {"const": "embedding"}, "index": _COUNT, "embedding": vector})
    cut = answer_of({"truncated": array(_COUNT)})
    usage = answer_of({"prompt_tokens": _COUNT, "total_tokens": _COUNT})
    made = {"object": {"const": "list"}, "data": array(row), "model": text(), "usage": usage}
    return answer_of({**made, "penstock": cut}, "penstock") | {
        "description": f"vectors as encoding_format says: {' or '.join(VECTOR_FORMATS)}"
    }


def _ranked() -> Schema:
    document = answer_of({"text": text()})
    row = answer_of({"index": _COUNT, "relevance_score": _NUMBER, "document": document}, "document")
    usage = answer_of({"prompt_tokens": _COUNT, "total_tokens": _COUNT})
    cut = answer_of({"truncated": array(_COUNT)})
    made = {"id": text(), "model": text(), "results": array(row), "usage": usage, "meta": {"type": "object"}}
    return answer_of({**made, "penstock": cut}, "penstock")


def _ranked_text() -> Schema:
    return answer_of({"index": _COUNT, "score": _NUMBER, "text": text()}, "text")


def _search() -> Schema:
    row = answer_of(
        {
            "file_id": text(),
            "filename": text(),
            "score": _NUMBER,
            "attributes": {"type": "object", "additionalProperties": text()},
            "content": array(answer_of({"type": {"const": "text"}, "text": text()})),
            "penstock": answer_of({"source": text(), "start": _COUNT, "end": _COUNT, "page": _COUNT}),
        }
    )
    return answer_of(
        {
            "object": {"const": "vector_store.search_results.page"},
            "search_query": array(text()),
            "data": array(row),
            "has_more": {"const": False},
            "next_page": {"type": "null"},
            "penstock": answer_of({"degraded": text(), "warning": text()}),
        }
    )


def _model() -> Schema:
    ours = {
        "capabilities": array(text("complete, chat or embed")),
        "default": flag("a request that names no model gets this one"),
        "targets": array(text("a model that may answer for a virtual name")),
        "default_sampling": {"type": "object"},
    }
    made = {
        "id": text(),
        "object": {"const": "model"},
        "created": _COUNT,
        "owned_by": text(),
        "root": text(),
        "parent": or_null(text("the model that an adapter is over")),
        "max_model_len": or_null(_COUNT),
        "embeds": flag("it makes vectors and no text"),
        "penstock": answer_of(ours, "default", "targets", "default_sampling"),
    }
    return answer_of(made)


# ---- the console ----------------------------------------------------------------------------------------


def _instance() -> Schema:
    adapter = answer_of({"name": text(), "rank": _COUNT, "error": text(), "tenants": array(text())})
    counts = ("pid", "context_tokens", "capacity", "live", "queued", "stalled_ms", "reconnects")
    engine_counts = ("threads", "steps", "step_us", "queued_tokens", "kv_blocks", "kv_blocks_free")
    engine = {"backend": text(), **dict.fromkeys(engine_counts, _COUNT)}
    engine |= {"tokens_per_s": _NUMBER, "best_tokens_per_s": _NUMBER}
    return answer_of(
        {
            "role": choice(ROLES),
            "instance": text(),
            "host": text(),
            "state": choice(("loading", "ready", "stalled", "draining", "stopped", "suspect")),
            "breaker": text("open or half-open where this gateway avoids it"),
            "model": text(),
            "degradation": choice(level.word for level in DegradationLevel),
            **dict.fromkeys(counts, _COUNT),
            "engine": or_null(answer_of(engine)),
            "adapters": array(adapter),
        }
    )


def _pipeline() -> Schema:
    percentiles = answer_of({"count": _COUNT, "p50_ms": _NUMBER, "p95_ms": _NUMBER, "p99_ms": _NUMBER})
    window = answer_of(
        {
            "seconds": _COUNT,
            "outcomes": {"type": "object", "additionalProperties": _COUNT},
            "tokens": _COUNT,
            "ttft": percentiles,
            "inter_token": percentiles,
        }
    )
    latency = {"slot_s": _COUNT, "requests": array(_COUNT), "tokens": array(_COUNT), "windows": array(window)}
    degradation = {"level": _COUNT, "word": text(), "levels": array(text()), "pressure": _NUMBER}
    corpus = {"name": text(), "passages": _COUNT, "generation": _COUNT, "trouble": text()}
    return answer_of(
        {
            "gateway": text(),
            "roles": array(choice(ROLES)),
            "instances": array(ref("Instance")),
            "left_out": _COUNT,
            "corpora": array(answer_of(corpus)),
            "degradation": answer_of(degradation),
            "latency": answer_of(latency),
        }
    )


def _requests() -> Schema:
    shared = {"id": text(), "tenant": text(), "model": text(), "prompt_tokens": _COUNT, "tokens": _COUNT}
    shared |= {"replacements": _COUNT}
    phase = {"name": text(), "start_us": _COUNT, "duration_us": _COUNT}
    ended = {
        **shared,
        "views": array(choice(VIEWS)),
        "outcome": choice((FINISHED, CANCELLED, EXPIRED, SHED, FAILED)),
        "error": text(),
        "cached_tokens": _COUNT,
        "ended_unix_ms": _COUNT,
        "ttft_us": or_null(_COUNT),
        "total_us": _COUNT,
        "route": array(answer_of({"role": choice(ROLES), "instance": text()})),
        "phases": array(answer_of(phase)),
    }
    return answer_of(
        {
            "live": _COUNT,
            "running": array(answer_of({**shared, "phase": choice(phase.value for phase in RequestPhase)})),
            "ended": array(answer_of(ended)),
            "silent": array(text("a gateway that does not answer, whose requests are missing")),
        }
    )
