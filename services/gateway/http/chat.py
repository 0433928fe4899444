"""`/v1/chat/completions`: its bodies, and the shape of its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.completion import (
    AskedCompletion,
    Echo,
    read_include_usage,
    read_n,
    repeat_choices,
)
from services.gateway.http.error_object import TOO_LONG
from services.gateway.http.json_fields import JsonFields
from services.gateway.http.penstock_options import read_penstock_options
from services.gateway.http.sampling_fields import read_sampling, read_seed
from services.gateway.http.token_text import TokenText, describe_tokens
from shared.sampling import MAX_TOP_LOGPROBS

SYSTEM_NAMES = {"developer": "system"}
"""What OpenAI calls the system of its newer models."""


def read_chat(body: JsonFields, headers: Mapping[str, str], default_max_tokens: int) -> AskedCompletion:
    """Raises InvalidRequest that names what is wrong."""
    _check_tools(body)
    options = read_penstock_options(body, headers)
    sampling = read_sampling(body, default_max_tokens)
    if body.flag("logprobs"):
        sampling.logprobs = body.integer("top_logprobs", 0, MAX_TOP_LOGPROBS, 0)
    elif body.has("top_logprobs"):
        raise body.wrong("top_logprobs", "it with logprobs true alone")
    request = pb.GenerateRequest(
        model=body.text("model"), chat=pb.ChatPrompt(messages=read_messages(body)), sampling=sampling
    )
    options.apply(request)
    n, stream = read_n(body, 1), body.flag("stream")
    return AskedCompletion(
        requests=repeat_choices([request], n, read_seed(body)),
        n=n,
        echoes=(Echo(),) * n,
        stream=stream,
        include_usage=read_include_usage(body, stream=stream),
        options=options,
        field_names=((TOO_LONG, "messages"),),
    )


def read_messages(body: JsonFields) -> list[pb.ChatMessage]:
    messages = []
    for message in body.objects("messages"):
        role = message.text("role")
        messages.append(pb.ChatMessage(role=SYSTEM_NAMES.get(role, role), content=_content(message)))
    return messages


def _check_tools(body: JsonFields) -> None:
    """Better refused than left out without a word."""
    for name, choice in (("tools", "tool_choice"), ("functions", "function_call")):
        if body.array(name) and body.value(choice) != "none":
            raise body.wrong(name, f"none, or {choice} none: this server calls no tools", "given")


def _content(message: JsonFields) -> str:
    """Text, or parts that are all text."""
    if not isinstance(message.value("content"), list):
        return message.text("content")
    texts = []
    for part in message.objects("content"):
        if part.value("type") not in ("text", "input_text"):
            raise part.wrong("type", "text: this model reads nothing else")
        texts.append(part.text("text"))
    return "".join(texts)


class ChatShape:
    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"

    def first_chunks(self, index: int) -> Sequence[Mapping[str, Any]]:
        return [_chunk(index, {"role": "assistant", "content": ""})]

    def text_chunk(
        self,
        index: int,
        text: str,
        tokens: Sequence[TokenText] | None,
        offset: int,  # noqa: ARG002 - of the other shape
    ) -> Mapping[str, Any]:
        return _chunk(index, {"content": text}, _logprobs(tokens))

    def end_chunk(self, index: int, finish_reason: str) -> Mapping[str, Any]:
        return _chunk(index, {}, finish_reason=finish_reason)

    def whole(
        self,
        index: int,
        text: str,
        tokens: Sequence[TokenText] | None,
        finish_reason: str,
        offset: int,  # noqa: ARG002 - of the other shape
    ) -> Mapping[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": _logprobs(tokens),
            "finish_reason": finish_reason,
        }


def _chunk(
    index: int,
    delta: Mapping[str, Any],
    logprobs: Mapping[str, Any] | None = None,
    finish_reason: str | None = None,
) -> Mapping[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _logprobs(tokens: Sequence[TokenText] | None) -> Mapping[str, Any] | None:
    if tokens is None:
        return None
    return {"content": describe_tokens(tokens), "refusal": None}
