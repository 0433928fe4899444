"""A call's arguments as a message of the contract."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from penstock.client._proto import inference_pb2 as pb

Turn = tuple[str, str] | pb.ChatMessage
"""A turn of a chat: (role, content), or a message with all that it may have: a name, calls, whose result it
is."""
Prompt = str | Sequence[int] | Sequence[Turn]
"""A text, token ids, or a chat."""
Priority = Literal["low", "normal", "high"]
ToolChoiceName = Literal["auto", "none", "required"]

CacheModeName = Literal["off", "exact", "semantic"]
_CACHE_MODES: dict[str, pb.CacheMode] = {
    "off": pb.CACHE_MODE_OFF,
    "exact": pb.CACHE_MODE_EXACT,
    "semantic": pb.CACHE_MODE_SEMANTIC,
}
_PRIORITIES: dict[str, pb.Priority] = {
    "low": pb.PRIORITY_LOW,
    "normal": pb.PRIORITY_NORMAL,
    "high": pb.PRIORITY_HIGH,
}

PassageOrderName = Literal["shared_prefix", "best_first"]
_PASSAGE_ORDERS: dict[str, pb.PassageOrder] = {
    "shared_prefix": pb.PASSAGE_ORDER_SHARED_PREFIX,
    "best_first": pb.PASSAGE_ORDER_BEST_FIRST,
}

_TOOL_CHOICES: dict[str, pb.ToolChoice] = {
    "auto": pb.TOOL_CHOICE_AUTO,
    "none": pb.TOOL_CHOICE_NONE,
    "required": pb.TOOL_CHOICE_REQUIRED,
}


ReasoningEffortName = Literal["none", "minimal", "low", "medium", "high"]
_EFFORTS: dict[str, pb.ReasoningEffort] = {
    "none": pb.REASONING_EFFORT_NONE,
    "minimal": pb.REASONING_EFFORT_MINIMAL,
    "low": pb.REASONING_EFFORT_LOW,
    "medium": pb.REASONING_EFFORT_MEDIUM,
    "high": pb.REASONING_EFFORT_HIGH,
}


class SamplingOptions(TypedDict, total=False):
    """The fields of the contract's `Sampling`; what is left out has the model's default."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    max_tokens: int
    min_tokens: int
    stop: Sequence[str]
    stop_regex: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: int
    prompt_logprobs: int
    allowed_token_ids: Sequence[int]
    bad_word_ids: Sequence[Sequence[int]]
    json_schema: str
    regex: str
    grammar: str
    json_object: bool


class ToolOptions(TypedDict, total=False):
    """The tools that the answer to a chat may call; `tool_name`: the one tool that it has to."""

    tools: Sequence[pb.Tool]
    tool_choice: ToolChoiceName
    tool_name: str
    parallel_tool_calls: bool


class GenerateOptions(SamplingOptions, ToolOptions, total=False):
    """Further options: which model, how many answers, how long, how urgent, with how many passages to
    read, which agent's call it is, how long the model may think before it answers."""

    model: str
    n: int
    deadline_s: float
    first_token_s: float
    inter_token_s: float
    priority: Priority
    retrieve: int
    retrieve_may_degrade: bool
    corpus: str
    filters: Mapping[str, str | Sequence[str]]
    passage_order: PassageOrderName
    retrieval_query: str
    score_threshold: float
    trimming: bool
    max_passage_tokens: int
    passage_share: float
    drop_duplicates: bool
    max_prompt_tokens: int
    fit_context: bool
    compact: bool
    max_summary_tokens: int
    max_tool_tokens: int
    cache: CacheModeName
    fallback: bool | Sequence[str]
    sticky_key: str
    agent: str | pb.AgentHints
    reasoning_effort: ReasoningEffortName
    thinking_tokens: int
    thinking_s: float


class RetrieveOptions(TypedDict, total=False):
    """Options of a search: how many passages, of which corpus and metadata; whether they are reranked, and
    worse ones will do."""

    k: int
    corpus: str
    filters: Mapping[str, str | Sequence[str]]
    rerank: bool
    may_degrade: bool
    score_threshold: float


_TRIMMING_FIELDS = {
    "max_passage_tokens": "max_passage_tokens",
    "passage_share": "passage_share",
    "drop_duplicates": "duplicates",
    "max_prompt_tokens": "max_prompt_tokens",
    "fit_context": "fit_context",
    "compact": "compact",
    "max_summary_tokens": "max_summary_tokens",
    "max_tool_tokens": "max_tool_tokens",
}
_RETRIEVAL_FIELDS = {
    "retrieve_may_degrade": "may_degrade",
    "corpus": "corpus",
    "retrieval_query": "query",
    "score_threshold": "score_threshold",
}


def build_request(prompt: Prompt, options: GenerateOptions) -> pb.GenerateRequest:
    """Raises TypeError for what the contract has no field for."""
    others: dict[str, Any] = dict(options)
    request = pb.GenerateRequest(
        model=others.pop("model", ""),
        priority=_PRIORITIES[others.pop("priority", "normal")],
        sticky_key=others.pop("sticky_key", ""),
        inter_token_deadline_ms=_milliseconds(others.pop("inter_token_s", 0.0)),
    )
    others.pop("deadline_s", None)  # counted by the call, over all of its attempts
    if (first_token_s := others.pop("first_token_s", None)) is not None:
        request.ttft_deadline_ms = _milliseconds(first_token_s)
    if (passages := others.pop("retrieve", 0)) > 0:
        request.retrieval.enabled = True
        request.retrieval.k = passages
    for option, field in _RETRIEVAL_FIELDS.items():
        if (value := others.pop(option, None)) is not None:
            setattr(request.retrieval, field, value)
    if (filters := others.pop("filters", None)) is not None:
        request.retrieval.filters.extend(build_filters(filters))
    if (order := others.pop("passage_order", None)) is not None:
        request.retrieval.order = _PASSAGE_ORDERS[order]
    _set_trimming(request, others)
    if (mode := others.pop("cache", None)) is not None:
        request.cache.mode = _CACHE_MODES[mode]
    if (fallback := others.pop("fallback", None)) is not None:
        models = () if isinstance(fallback, bool) else (fallback,) if isinstance(fallback, str) else fallback
        request.fallback.CopyFrom(pb.Fallback(allowed=fallback is not False, models=models))
    _set_agent(request, others.pop("agent", None))
    _set_thinking(request, others)
    if (choices := others.pop("n", None)) is not None:
        request.n = choices
    _set_prompt(request, prompt)
    _set_tools(request, {name: others.pop(name) for name in ToolOptions.__annotations__ if name in others})
    request.sampling.CopyFrom(_sampling(**others))
    return request


def build_retrieval(query: str, options: RetrieveOptions) -> pb.RetrieveRequest:
    """Raises ValueError for what the contract has no field for."""
    others: dict[str, Any] = dict(options)
    filters = build_filters(others.pop("filters", {}))
    return pb.RetrieveRequest(query=query, filters=filters, **others)


def build_filters(filters: Mapping[str, str | Sequence[str]]) -> list[pb.MetadataFilter]:
    """Fields of metadata, each with its value, or with several of which one will do."""
    return [
        pb.MetadataFilter(field=field, values=[of] if isinstance(of, str) else of)
        for field, of in filters.items()
    ]


def stamp_request(request: pb.GenerateRequest, remaining_s: float | None) -> None:
    """Stamp what is of this attempt alone: when it is sent, and how long it has."""
    request.client_sent_unix_us = time.time_ns() // 1000
    if remaining_s is not None:
        request.deadline_ms = _milliseconds(remaining_s)


def build_prompt(prompt: str | Sequence[Turn]) -> pb.TokenizeRequest:
    if isinstance(prompt, str):
        return pb.TokenizeRequest(text=prompt)
    return pb.TokenizeRequest(chat=_chat(prompt))


def _set_trimming(request: pb.GenerateRequest, others: dict[str, Any]) -> None:
    """Take the budgets of the prompt from the options."""
    if (allowed := others.pop("trimming", None)) is not None:
        request.trimming.off = not allowed
    for option, field in _TRIMMING_FIELDS.items():
        if (value := others.pop(option, None)) is not None:
            setattr(request.trimming, field, value)


def _set_agent(request: pb.GenerateRequest, agent: str | pb.AgentHints | None) -> None:
    if agent is not None:
        request.agent.CopyFrom(pb.AgentHints(session=agent) if isinstance(agent, str) else agent)


def _set_thinking(request: pb.GenerateRequest, others: dict[str, Any]) -> None:
    """Take out of `others` what is about thinking."""
    if (effort := others.pop("reasoning_effort", None)) is not None:
        request.thinking.effort = _EFFORTS[effort]
    if (tokens := others.pop("thinking_tokens", None)) is not None:
        request.thinking.max_tokens = tokens
    if (thinking_s := others.pop("thinking_s", None)) is not None:
        request.thinking.deadline_ms = _milliseconds(thinking_s)


def _set_prompt(request: pb.GenerateRequest, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        request.text = prompt
    elif all(isinstance(one, int) for one in prompt):
        request.token_ids.ids.extend(one for one in prompt if isinstance(one, int))
    else:
        request.chat.CopyFrom(_chat([one for one in prompt if not isinstance(one, int)]))


def _set_tools(request: pb.GenerateRequest, options: Mapping[str, Any]) -> None:
    if not options:
        return
    if not request.HasField("chat"):
        raise TypeError(f"{next(iter(options))} is for a chat alone: send messages")
    fields = dict(options)
    choice = _TOOL_CHOICES[fields.pop("tool_choice", "auto")]
    request.chat.MergeFrom(pb.ChatPrompt(tool_choice=choice, **fields))


def _chat(turns: Sequence[Turn]) -> pb.ChatPrompt:
    return pb.ChatPrompt(messages=[_message(turn) for turn in turns])


def _message(turn: Turn) -> pb.ChatMessage:
    if isinstance(turn, pb.ChatMessage):
        return turn
    role, content = turn
    return pb.ChatMessage(role=role, content=content)


def _sampling(**options: Unpack[SamplingOptions]) -> pb.Sampling:
    fields: dict[str, Any] = dict(options)
    words = fields.pop("bad_word_ids", ())
    unknown = sorted(set(fields) - set(SamplingOptions.__annotations__))
    if unknown:
        raise TypeError(f"generate() has no argument {unknown[0]!r}")
    return pb.Sampling(bad_word_ids=[pb.TokenIds(ids=ids) for ids in words], **fields)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000)) if seconds > 0 else 0
