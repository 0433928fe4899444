"""Read options that OpenAI has no field for: headers `x-penstock-*`, or `penstock` in the body, which
wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.fields.agent_fields import SESSION, read_agent, read_foreign_priority
from services.gateway.http.fields.json_fields import JsonFields, WrongField
from services.gateway.http.fields.thinking_fields import THINKING, read_thinking
from services.gateway.request.fallback_use import MAX_STICKY_KEY_CHARS
from services.gateway.request.resume_token import ResumePoint
from services.gateway.request.retrieval_use import ORDERS
from shared.sampling.parameters import Bounds

FIELD = "penstock"
HEADER_PREFIX = "x-penstock-"
CACHE_MODES_BY_NAME = {
    "off": pb.CACHE_MODE_OFF,
    "exact": pb.CACHE_MODE_EXACT,
    "semantic": pb.CACHE_MODE_SEMANTIC,
}
ORDERS_BY_NAME = {name: order for order, name in ORDERS.items()}
PRIORITIES_BY_NAME = {"low": pb.PRIORITY_LOW, "normal": pb.PRIORITY_NORMAL, "high": pb.PRIORITY_HIGH}
MILLISECONDS = ("deadline_ms", "ttft_deadline_ms", "inter_token_deadline_ms", "client_sent_unix_us")
TEXTS = ("priority", "cache_salt", "sticky_key", "regex", "grammar")
FLAGS = ("timeline", "resumable")
HEADER_NAMES = (
    *MILLISECONDS, "priority", "cache_salt", "sticky_key", SESSION, "retrieval", "trimming", "cache",
    "fallback", *FLAGS,
)  # fmt: skip
"""Grammars are for the body alone."""
PARTS = ("retrieval", "trimming", "cache", "fallback", SESSION, THINKING)
OPTION_NAMES = (*MILLISECONDS, *TEXTS, *FLAGS, *PARTS)
BUDGET_COUNTS = ("max_passage_tokens", "max_prompt_tokens", "max_summary_tokens", "max_tool_tokens")
BUDGET_FLAGS = ("duplicates", "fit_context", "compact")
BUDGETS = (*BUDGET_COUNTS, "passage_share", *BUDGET_FLAGS)
"""The budgets of a prompt; what they may be is checked where requests are."""
MAX_COUNT_DIGITS = 9
"""The longest count in the id of an event."""
INT32 = Bounds(-(2**31), 2**31 - 1, integer=True)
INT64 = Bounds(-(2**63), 2**63 - 1, integer=True)
LAST_EVENT_ID = "Last-Event-ID"
"""The header in which a client says up to where it has a stream, by the id of its last event."""
TRUE, FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(frozen=True, slots=True)
class PenstockOptions:
    """`fields` are those of a GenerateRequest. `resumed`: where a stream is gone on with, None for a new
    one."""

    fields: Mapping[str, Any]
    regex: str
    grammar: str
    cache_salt: str
    timeline: bool
    resumed: ResumePoint | None = None

    def apply(self, message: pb.GenerateRequest) -> None:
        """Raises WrongField when the request has another constraint already."""
        message.MergeFrom(pb.GenerateRequest(**self.fields))
        for name, value in (("regex", self.regex), ("grammar", self.grammar)):
            if value:
                if message.sampling.WhichOneof("constraint"):
                    raise WrongField(f"{FIELD}.{name}", "is the second constraint: send one")
                setattr(message.sampling, name, value)


def read_penstock_options(body: JsonFields, headers: Mapping[str, str]) -> PenstockOptions:
    """Raises WrongField; a name that is none of ours is wrong too, as it can only be a typing error."""
    options = JsonFields({**_of_headers(headers), **body.object(FIELD).raw}, FIELD)
    for name in options.names():
        if name not in OPTION_NAMES:
            raise WrongField(options.param(name), f"is no option: send one of {', '.join(OPTION_NAMES)}")
    fields: dict[str, Any] = {name: options.number(name, INT64) for name in MILLISECONDS if options.has(name)}
    if (priority := _priority(options, body)) is not None:
        fields["priority"] = priority
    if (agent := read_agent(body, options, headers)) is not None:
        fields["agent"] = agent
    if (thinking := read_thinking(body, options)) is not None:
        fields["thinking"] = thinking
    for name, read in OBJECTS.items():
        if options.has(name):
            fields[name] = read(options)
    if sticky_key := options.text("sticky_key") or _user(body):
        fields["sticky_key"] = sticky_key
    if options.flag("resumable"):
        fields["resumable"] = True
    return PenstockOptions(
        fields,
        options.text("regex"),
        options.text("grammar"),
        options.text("cache_salt") or body.text("cache_salt"),
        options.flag("timeline"),
        _resumed(headers, resumable=options.flag("resumable")),
    )


def check_stream_alone(options: PenstockOptions, *, stream: bool) -> None:
    """Raise WrongField where an answer at once is to be resumable."""
    if "resumable" in options.fields and not stream:
        raise WrongField(f"{FIELD}.resumable", "is for a stream: send stream true")


def check_not_resumable(options: PenstockOptions) -> None:
    """Raise WrongField where the events of an interface have no ids."""
    if "resumable" in options.fields:
        raise WrongField(f"{FIELD}.resumable", "is not for this path: send it to one of completions")


def event_id(token: str, tokens: int, chars: int) -> str:
    """Return the id of an event after which a client has so much of the stream that `token` is of."""
    return f"{token}~{tokens}~{chars}"


def _resumed(headers: Mapping[str, str], *, resumable: bool) -> ResumePoint | None:
    """Read the place that the id of the last event names."""
    last_id = headers.get(LAST_EVENT_ID, "")
    if not last_id:
        return None
    if not resumable:
        raise WrongField(
            LAST_EVENT_ID, f"is of a stream with {FIELD}.resumable: send that too, or no such id"
        )
    token, *counts = last_id.rsplit("~", 2)
    if len(counts) != 2 or not all(_is_count(count) for count in counts):
        raise WrongField(LAST_EVENT_ID, "is no id of an event of ours: send the last one as it came")
    return ResumePoint(token, *map(int, counts))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MAX_COUNT_DIGITS


def _priority(options: JsonFields, body: JsonFields) -> pb.Priority | None:
    if options.has("priority"):
        return PRIORITIES_BY_NAME[options.choice("priority", PRIORITIES_BY_NAME)]
    return read_foreign_priority(body)


def _retrieval(options: JsonFields) -> pb.Retrieval:
    if isinstance(options.value("retrieval"), bool):
        return pb.Retrieval(enabled=options.flag("retrieval"))
    given = options.object("retrieval")
    retrieval = pb.Retrieval(
        enabled=True,
        may_degrade=given.flag("may_degrade", default=True),
        corpus=given.text("corpus"),
        query=given.text("query"),
        filters=_filters(given),
    )
    for name in ("k", "max_tokens"):
        value = given.number(name, INT32)
        if value is not None:
            setattr(retrieval, name, value)
    threshold = given.number("score_threshold", Bounds(0.0, 1.0))
    if threshold is not None:
        retrieval.score_threshold = threshold
    if given.has("order"):
        retrieval.order = ORDERS_BY_NAME[given.choice("order", ORDERS_BY_NAME)]
    return retrieval


def _trimming(options: JsonFields) -> pb.Trimming:
    """False, or budgets; true leaves all of them to the server."""
    if isinstance(options.value("trimming"), bool):
        return pb.Trimming(off=not options.flag("trimming"))
    given = options.object("trimming")
    for name in given.names():
        if name not in BUDGETS:
            raise WrongField(given.param(name), f"is no budget: send one of {', '.join(BUDGETS)}")
    trimming = pb.Trimming()
    for name in BUDGET_COUNTS:
        if (tokens := given.number(name, INT32)) is not None:
            setattr(trimming, name, tokens)
    if (share := given.number("passage_share", Bounds(0.0, 1.0))) is not None:
        trimming.passage_share = share
    for name in BUDGET_FLAGS:
        if given.has(name):
            setattr(trimming, name, given.flag(name))
    return trimming


def _fallback(options: JsonFields) -> pb.Fallback:
    """Whether another model may answer, or which."""
    if isinstance(options.value("fallback"), bool):
        return pb.Fallback(allowed=options.flag("fallback"))
    models = options.strings("fallback")
    return pb.Fallback(allowed=True, models=models)


def _user(body: JsonFields) -> str:
    """Return OpenAI's `user`, as far as it counts; "" for none."""
    return body.text("user")[:MAX_STICKY_KEY_CHARS]


def _filters(given: JsonFields) -> list[pb.MetadataFilter]:
    """Return for each field its value, or the values of which one will do."""
    asked = given.object("filters")
    filters = []
    for name in asked.names():
        value = asked.value(name)
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
            raise asked.wrong(name, "a text, or a list of texts of which one will do")
        filters.append(pb.MetadataFilter(field=name, values=values))
    return filters


def _cache(options: JsonFields) -> pb.Cache:
    """The name of a mode, or an object with it."""
    if isinstance(options.value("cache"), str):
        given = JsonFields({"mode": options.value("cache")}, f"{FIELD}.cache")
    else:
        given = options.object("cache")
    cache = pb.Cache(
        mode=CACHE_MODES_BY_NAME[given.choice("mode", CACHE_MODES_BY_NAME)],
        max_age_ms=given.number("max_age_ms", INT64) or 0,
        any_seed=given.flag("any_seed"),
    )
    similarity = given.number("min_similarity", Bounds(0.0, 1.0))
    if similarity is not None:
        cache.min_similarity = similarity
    return cache


def _of_headers(headers: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: _of_header(name, headers[header])
        for name in HEADER_NAMES
        if (header := HEADER_PREFIX + name.replace("_", "-")) in headers
    }


def _of_header(name: str, value: str) -> Any:
    """Return the header's value as JSON has it; one that is wrong stays a string and is refused as such."""
    if name in MILLISECONDS:
        digits = value.removeprefix("-")
        return int(value) if digits.isascii() and digits.isdecimal() and len(digits) < 20 else value
    if name in (*FLAGS, "retrieval", "trimming", "fallback"):
        if value.lower() in TRUE + FALSE:
            return value.lower() in TRUE
        return [each.strip() for each in value.split(",")] if name == "fallback" else value
    return value


OBJECTS = {"retrieval": _retrieval, "trimming": _trimming, "cache": _cache, "fallback": _fallback}
"""The options that are messages of the contract, and how each is read."""
