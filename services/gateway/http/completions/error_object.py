"""OpenAI's error objects: what a typed error is over HTTP, and which field a sentence is about."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.gateway.asks.passage_asks import NoSuchCorpus
from services.gateway.http.fields.json_fields import WrongField
from services.gateway.keys.key_gate import NotAnOperator
from services.gateway.keys.rate_limits import LimitReached
from services.gateway.scope.outcome import Outcome
from shared.errors import (
    Cancelled,
    ContextExceeded,
    DeadlineExpired,
    InvalidRequest,
    NoPassages,
    NotFound,
    Overloaded,
    PenstockError,
    TooLarge,
    Unauthenticated,
    Unavailable,
)

CLIENT_LEFT = 499
"""The status that proxies give a request whose client is gone; here also one that was cancelled by its id."""


class SlowBody(PenstockError):
    """The body of the request did not come in time."""

    code = "request_timeout"


class WrongContentType(InvalidRequest):
    """The body is not said to be JSON."""

    code = "unsupported_media_type"


class WrongFraming(InvalidRequest):
    """The request does not say its end in the one way that everybody reads alike."""

    code = "invalid_framing"


class ForeignCaller(PenstockError):
    """A web page asked that may not, or the host was called by a name that is not its own."""

    code = "forbidden"


class NoSuchPath(NotFound):
    """The path is none of ours."""

    code = "unknown_url"


class WrongMethod(InvalidRequest):
    """The path is one of ours, with another method."""

    code = "method_not_allowed"


class NoSuchRequest(NotFound):
    """There is no live request with this id."""

    code = "request_not_found"


_KINDS: tuple[tuple[type[PenstockError], int, str, str], ...] = (
    (Unauthenticated, 401, "authentication_error", "invalid_api_key"),
    (NotAnOperator, 403, "permission_error", "operator_key_required"),
    (NoSuchPath, 404, "invalid_request_error", "unknown_url"),
    (NoSuchRequest, 404, "invalid_request_error", "request_not_found"),
    (NoSuchCorpus, 404, "invalid_request_error", "corpus_not_found"),
    (NoPassages, 404, "invalid_request_error", "no_passages"),
    (NotFound, 404, "invalid_request_error", "model_not_found"),
    (ContextExceeded, 400, "invalid_request_error", "context_length_exceeded"),
    (WrongContentType, 415, "invalid_request_error", "unsupported_media_type"),
    (ForeignCaller, 403, "permission_error", "forbidden"),
    (WrongFraming, 400, "invalid_request_error", "invalid_framing"),
    (WrongMethod, 405, "invalid_request_error", "method_not_allowed"),
    (InvalidRequest, 400, "invalid_request_error", "invalid_value"),
    (SlowBody, 408, "invalid_request_error", "request_timeout"),
    (TooLarge, 413, "invalid_request_error", "too_large"),
    (LimitReached, 429, "rate_limit_error", "rate_limit_exceeded"),
    (Overloaded, 429, "rate_limit_error", "overloaded"),
    (DeadlineExpired, 504, "timeout_error", "deadline_expired"),
    (Cancelled, CLIENT_LEFT, "cancelled_error", "cancelled"),
    (Unavailable, 503, "server_error", "unavailable"),
    (PenstockError, 500, "server_error", "internal_error"),
)
"""Error, status, type, code: the first that fits; NotFound is an InvalidRequest too."""

STATUSES: Mapping[int, str] = {
    status: " or ".join(dict.fromkeys(code for _, other, _, code in _KINDS if other == status))
    for _, status, _, _ in _KINDS
}
"""The codes of errors by their status."""

_NO_RETRY = (CLIENT_LEFT, 504)
"""OpenAI's clients repeat these by themselves unless told not to: the time is up, or nobody waits."""

FieldNames = Sequence[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]]
"""The name of a field in the gRPC contract, and its name in one of our paths."""

TOO_LONG = re.compile(r"^the prompt(?= has (?:at least )?\d+ tokens)")
"""The beginning of the sentence about a prompt that is too long; each path has its word for it."""

_CONTRACT_NAMES: FieldNames = (
    (re.compile(r"\bsampling\.json_schema\b"), "response_format.json_schema.schema"),
    (re.compile(r"\bsampling\.(regex|grammar)\b"), r"penstock.\1"),
    (re.compile(r"\bsampling\.prompt_logprobs\b"), "logprobs"),
    (re.compile(r"\bsampling\.(?=\w)"), ""),
    (re.compile(r"\bchat\.messages\b"), "messages"),
    (re.compile(r"(\.tool_calls\[\d+\])\.(?=name|arguments)"), r"\1.function."),
    (re.compile(r"\bchat\.(tools\[\d+\])\."), r"\1.function."),
    (re.compile(r"\bchat\.tools\b"), "tools"),
    (re.compile(r"\bchat\.tool_name\b"), "tool_choice.function.name"),
    (re.compile(r"^(?:token_ids(?:\.ids)?|text)(?= (?:is|has|holds) )"), "prompt"),
    (
        re.compile(r"\b(retrieval\.k|(?:ttft_|inter_token_)?deadline_ms|client_sent_unix_us)\b"),
        r"penstock.\1",
    ),
    (TOO_LONG, "prompt"),
    (re.compile(r"^(priority|retrieval|resumable)(?= (?:is|needs|cannot) )"), r"penstock.\1"),
)
"""The names that most of our paths have."""
_QUOTED = re.compile(r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?!\w)""")
"""A value of the client's in a sentence, as Python writes strings."""
_QUOTE = "\0"
"""Stands for it while the sentence's own words are renamed."""
_PARAM = re.compile(r"[a-z_]+(?:\[\d+\]|\.[a-z_]+)*(?= (?:\d+ )?(?:is|has|holds|hold|needs|cannot|rules)\b)")
"""A sentence that is about a field begins with it."""
_FIELDS = frozenset(
    {
        *("model", "messages", "prompt", "input", "tokens", "stop", "stop_token_ids", "ignore_eos", "seed"),
        *("temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "logprobs", "logit_bias"),
        *("repetition_penalty", "presence_penalty", "frequency_penalty", "response_format", "penstock"),
        *("query", "filters", "vector_store_id", "documents", "texts", "top_n"),
        *("cache_salt", "tools", "tool_choice", "instructions", "text", "max_output_tokens"),
        "stop_regex",
    }
)


def error_object(error: PenstockError, names: FieldNames = ()) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Status, headers and body; `names` go before those that most paths have."""
    status, kind, code = next((s, k, c) for fits, s, k, c in _KINDS if isinstance(error, fits))
    message, param = _in_our_words(error, names)
    body = {"message": message, "type": kind, "param": param, "code": code, "hop": error.hop or None}
    return status, _headers(status, Outcome.of(error).retry_after_ms), {"error": body}


def _headers(status: int, retry_after_ms: int) -> dict[str, str]:
    headers = {}
    if retry_after_ms > 0:
        headers["Retry-After"] = str(math.ceil(retry_after_ms / 1000))
        headers["retry-after-ms"] = str(retry_after_ms)
    if status in _NO_RETRY:
        headers["x-should-retry"] = "false"
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def _in_our_words(error: PenstockError, names: FieldNames) -> tuple[str, str | None]:
    """The sentence with the fields as this edge names them, and the one that it is about."""
    if isinstance(error, WrongField):
        return error.message, error.param
    message = _renamed(error.message, (*names, *_CONTRACT_NAMES))
    if not isinstance(error, InvalidRequest | TooLarge):
        return message, None
    found = _PARAM.match(message)
    if found is None or re.split(r"[.\[]", found[0], maxsplit=1)[0] not in _FIELDS:
        return message, "model" if isinstance(error, NotFound) and message.startswith("model ") else None
    return message, found[0]


def _renamed(message: str, names: FieldNames) -> str:
    """Rename the fields of a sentence; what it quotes of the client stays as it was sent."""
    message = message.replace(_QUOTE, "")
    quoted = [found[0] for found in _QUOTED.finditer(message)]
    message = _QUOTED.sub(_QUOTE, message)
    for contract, ours in names:
        message = contract.sub(ours, message)
    first, *others = message.split(_QUOTE)
    return first + "".join(quote + other for quote, other in zip(quoted, others, strict=False))
