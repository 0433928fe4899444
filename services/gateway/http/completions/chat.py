"""`/v1/chat/completions`: its bodies, and the shape of its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.completions.completion import (
    AskedCompletion,
    Echo,
    read_n,
    read_stream_usage,
    seeded_choices,
)
from services.gateway.http.completions.error_object import TOO_LONG
from services.gateway.http.completions.token_text import TokenText, describe_tokens
from services.gateway.http.fields.chat_tools import call_chunks, call_objects, read_calls, read_chat_tools
from services.gateway.http.fields.json_fields import JsonFields
from services.gateway.http.fields.penstock_options import read_penstock_options
from services.gateway.http.fields.sampling_fields import read_sampling, read_seed
from shared.sampling.parameters import MAX_TOP_LOGPROBS


def read_chat(body: JsonFields, headers: Mapping[str, str], default_max_tokens: int) -> AskedCompletion:
    """Raises InvalidRequest that names what is wrong."""
    options = read_penstock_options(body, headers)
    sampling = read_sampling(body, default_max_tokens)
    if body.flag("logprobs"):
        sampling.logprobs = body.integer("top_logprobs", 0, MAX_TOP_LOGPROBS, 0)
    elif body.has("top_logprobs"):
        raise body.wrong("top_logprobs", "it with logprobs true alone")
    request = pb.GenerateRequest(model=body.text("model"), chat=read_chat_prompt(body), sampling=sampling)
    options.apply(request)
    n, stream = read_n(body, 1), body.flag("stream")
    return AskedCompletion(
        choices=seeded_choices([request], n, read_seed(body)),
        echoes=(Echo(),) * n,
        stream=stream,
        stream_usage=read_stream_usage(body, stream=stream),
        options=options,
        field_names=((TOO_LONG, "messages"),),
    )


def read_chat_prompt(body: JsonFields) -> pb.ChatPrompt:
    """Messages and tools."""
    chat = pb.ChatPrompt(messages=_messages(body))
    read_chat_tools(chat, body)
    return chat


def _messages(body: JsonFields) -> list[pb.ChatMessage]:
    return [
        pb.ChatMessage(
            role=message.text("role"),
            content=_content(message),
            name=message.text("name"),
            tool_calls=read_calls(message),
            tool_call_id=message.text("tool_call_id"),
            reasoning=message.text("reasoning_content"),
        )
        for message in body.objects("messages")
    ]


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
        calls: Sequence[pb.ToolCallDelta] = (),
        reasoning: str = "",
    ) -> Mapping[str, Any]:
        delta: dict[str, Any] = {"content": text} if text or not (calls or reasoning) else {}
        if reasoning:
            delta["reasoning_content"] = reasoning
        if calls:
            delta["tool_calls"] = call_chunks(calls)
        return _chunk(index, delta, _logprobs(tokens))

    def end_chunk(self, index: int, finish_reason: str) -> Mapping[str, Any]:
        return _chunk(index, {}, finish_reason=finish_reason)

    def whole(
        self,
        index: int,
        text: str,
        tokens: Sequence[TokenText] | None,
        finish_reason: str,
        offset: int,  # noqa: ARG002 - of the other shape
        calls: Sequence[pb.ToolCall] = (),
        reasoning: str = "",
    ) -> Mapping[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message |= {"content": text or None, "tool_calls": call_objects(calls)}
        return {
            "index": index,
            "message": message,
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
