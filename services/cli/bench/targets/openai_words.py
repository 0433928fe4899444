"""The words of OpenAI's three interfaces: the body of a call, and what a chunk of its stream says."""

from __future__ import annotations

import json
from typing import Any

from services.cli.bench.targets.target import (
    CallEnded,
    CallFacts,
    CallOutcome,
    StreamPiece,
    TargetCall,
    TargetSampling,
)

PATHS = {"chat": "chat/completions", "completions": "completions", "responses": "responses"}
"""Interface → its path behind /v1."""
OUTCOMES_BY_CODE = {
    "overloaded": CallOutcome.SHED,
    "rate_limit_exceeded": CallOutcome.SHED,
    "deadline_expired": CallOutcome.EXPIRED,
    "unavailable": CallOutcome.FAILED,
}
OUTCOMES_BY_STATUS = {
    408: CallOutcome.EXPIRED,
    429: CallOutcome.SHED,
    503: CallOutcome.SHED,
    504: CallOutcome.EXPIRED,
}
THINKING_DELTA = "response.reasoning_text.delta"
DELTA_TYPES = ("response.output_text.delta", THINKING_DELTA)
"""The events of a response that have text."""
LAST_TYPES = ("response.completed", "response.incomplete")
"""The last events of a response; the other interfaces end with a mark."""
THINKING_FIELDS = ("reasoning_content", "reasoning")


def call_body(interface: str, call: TargetCall, sampling: TargetSampling) -> dict[str, Any]:
    body: dict[str, Any] = {"model": sampling.model, "stream": True, "temperature": sampling.temperature}
    if sampling.ignore_eos:
        body["ignore_eos"] = True
    if call.passages:
        retrieval = {"enabled": True, "k": call.passages, "may_degrade": False}
        body["penstock"] = {"retrieval": retrieval}
    if call.json_schema:
        body |= _answer_format(interface, json.loads(call.json_schema))
    if interface == "completions":
        return body | {
            "prompt": call.plain_text,
            "max_tokens": call.max_tokens,
            "stream_options": {"include_usage": True},
        }
    messages = [{"role": role, "content": text} for role, text in call.messages]
    if interface == "responses":
        return body | {"input": messages, "max_output_tokens": call.max_tokens}
    return body | {
        "messages": messages,
        "max_tokens": call.max_tokens,
        "stream_options": {"include_usage": True},
    }


def hint_headers(call: TargetCall) -> dict[str, str]:
    """Return the headers by which Dynamo's clients name the agent that a call is of; others take no
    notice."""
    hints = call.hints
    if hints is None:
        return {}
    headers = {"x-dynamo-session-id": hints.session}
    if hints.parent:
        headers["x-dynamo-parent-session-id"] = hints.parent
    return headers | ({"x-dynamo-session-final": "true"} if hints.final else {})


def _answer_format(interface: str, schema: Any) -> dict[str, Any]:
    """Return what asks for an answer that fits the schema; plain completions have no words for it."""
    named = {"name": "answer", "schema": schema}
    if interface == "responses":
        return {"text": {"format": {"type": "json_schema", **named}}}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def read_chunk(data: bytes, facts: CallFacts) -> StreamPiece | None:
    """Return the text of a chunk, if it has any, and note what it says of the call. Raises CallEnded."""
    try:
        chunk = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CallEnded(CallOutcome.FAILED, "no JSON in the stream", str(error)) from error
    if not isinstance(chunk, dict):
        raise CallEnded(CallOutcome.FAILED, "no object in the stream", str(chunk))
    failed = chunk.get("error") or _dict(chunk.get("response")).get("error")
    if failed:
        raise ended_by_error(0, failed)
    _note(chunk, facts)
    facts.ended = facts.ended or chunk.get("type") in LAST_TYPES
    if chunk.get("type") in DELTA_TYPES:
        return StreamPiece(str(chunk.get("delta", "")), thinking=chunk["type"] == THINKING_DELTA)
    choices = chunk.get("choices") or ()
    if text := "".join(map(_choice_text, choices)):
        return StreamPiece(text)
    thought = "".join(map(_choice_thinking, choices))
    return StreamPiece(thought, thinking=True) if thought else None


def ended_by_error(status: int, error: Any) -> CallEnded:
    """Return how a call ended of which the server says `error`; 0: its stream had begun."""
    told = _dict(error)
    code = str(told.get("code") or told.get("type") or "error")
    sentence = str(told.get("message") or error)
    kind = f"http {status} {code}" if status else f"in the stream: {code}"
    otherwise = CallOutcome.REFUSED if 400 <= status < 500 else CallOutcome.FAILED
    outcome = OUTCOMES_BY_CODE.get(code) or OUTCOMES_BY_STATUS.get(status, otherwise)
    return CallEnded(outcome, kind, sentence)


def _choice_text(choice: Any) -> str:
    delta = _dict(_dict(choice).get("delta"))
    said = [_dict(choice).get("text"), delta.get("content")]
    calls = delta.get("tool_calls") or ()
    said += [_dict(_dict(each).get("function")).get("arguments") for each in calls]
    return next((text for text in said if isinstance(text, str) and text), "")


def _choice_thinking(choice: Any) -> str:
    """Return what a model thinks before it answers, where the server tells that apart."""
    delta = _dict(_dict(choice).get("delta"))
    said = (delta.get(name) for name in THINKING_FIELDS)
    return next((text for text in said if isinstance(text, str) and text), "")


def _note(chunk: dict[str, Any], facts: CallFacts) -> None:
    whole = _dict(chunk.get("response")) or chunk
    facts.model = str(whole.get("model") or facts.model)
    facts.request_id = str(whole.get("id") or facts.request_id)
    usage = _dict(whole.get("usage"))
    for field, names in (
        ("prompt_tokens", ("prompt_tokens", "input_tokens")),
        ("completion_tokens", ("completion_tokens", "output_tokens")),
    ):
        for name in names:
            if isinstance(usage.get(name), int):
                setattr(facts, field, usage[name])
    details = _dict(usage.get("prompt_tokens_details")) or _dict(usage.get("input_tokens_details"))
    if isinstance(details.get("cached_tokens"), int):
        facts.cached_tokens = details["cached_tokens"]
    guessed = _dict(usage.get("completion_tokens_details")).get("accepted_prediction_tokens")
    if isinstance(guessed, int):
        facts.drafted_tokens = guessed
    for request in _dict(whole.get("penstock")).get("requests") or ():
        _note_ours(_dict(request), facts)


def _note_ours(request: dict[str, Any], facts: CallFacts) -> None:
    """Note what Penstock alone says."""
    usage = _dict(request.get("usage"))
    facts.drafted_tokens = int(usage.get("accepted_draft_tokens", -1))
    facts.replacements = int(usage.get("replacements", 0))
    facts.earlier_answer = "cached" in request
    for phase in _dict(request.get("timeline")).get("phases") or ():
        name, spent = str(phase["name"]), float(phase["duration_us"]) / 1e3
        facts.phases_ms[name] = facts.phases_ms.get(name, 0.0) + spent


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
