"""Tools in OpenAI's chats: what a body says of them, and how calls are told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.fields.json_fields import JsonFields
from services.gateway.http.fields.sampling_fields import wrong_choice

CHOICES = {
    "auto": pb.TOOL_CHOICE_AUTO,
    "none": pb.TOOL_CHOICE_NONE,
    "required": pb.TOOL_CHOICE_REQUIRED,
}


def read_chat_tools(chat: pb.ChatPrompt, body: JsonFields) -> None:
    """Read the tools of a body; raises as `read_tools_into` does."""
    for old, new in (("functions", "tools"), ("function_call", "tool_choice")):
        if body.has(old) and body.value(old) not in ([], "none"):
            raise body.wrong(old, f"{new} in its place")
    read_tools_into(chat, body, _function)


def read_tools_into(
    chat: pb.ChatPrompt, body: JsonFields, function_of: Callable[[JsonFields], JsonFields]
) -> None:
    """`function_of` checks what stands for a function, in `tools` or as `tool_choice`, and finds its fields.

    Raises WrongField; names and schemas are checked with the rest of the request.
    """
    chat.tools.extend(_tool(function_of(tool)) for tool in body.objects("tools"))
    if isinstance(body.value("tool_choice"), dict):
        function = function_of(body.object("tool_choice"))
        if not function.text("name"):
            raise function.wrong("name", "the name of one of tools", "")
        chat.tool_name = function.text("name")
    else:
        choice = body.text("tool_choice", "auto")
        if choice not in CHOICES:
            raise wrong_choice(body, "tool_choice", (*CHOICES, "a function"))
        chat.tool_choice = CHOICES[choice]
    if body.has("parallel_tool_calls"):
        chat.parallel_tool_calls = body.flag("parallel_tool_calls")


def read_calls(message: JsonFields) -> list[pb.ToolCall]:
    """Read the calls of an earlier answer."""
    if message.has("function_call"):
        raise message.wrong("function_call", "tool_calls in its place")
    calls = []
    for call in message.objects("tool_calls"):
        function = _function(call)
        calls.append(
            pb.ToolCall(id=call.text("id"), name=function.text("name"), arguments=function.text("arguments"))
        )
    return calls


def add_calls(calls: list[pb.ToolCall], deltas: Sequence[pb.ToolCallDelta]) -> None:
    """Each delta to the call that it is of."""
    for delta in deltas:
        if delta.index == len(calls):
            calls.append(pb.ToolCall(id=delta.id, name=delta.name))
        calls[delta.index].arguments += delta.arguments


def call_objects(calls: Sequence[pb.ToolCall]) -> list[Mapping[str, Any]]:
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]


def call_chunks(deltas: Sequence[pb.ToolCallDelta]) -> list[Mapping[str, Any]]:
    """Id and name are in the first of a call."""
    return [
        {
            "index": delta.index,
            "id": delta.id,
            "type": "function",
            "function": {"name": delta.name, "arguments": delta.arguments},
        }
        if delta.id
        else {"index": delta.index, "function": {"arguments": delta.arguments}}
        for delta in deltas
    ]


def _tool(function: JsonFields) -> pb.Tool:
    return pb.Tool(
        name=function.text("name"),
        description=function.text("description"),
        parameters=_parameters(function) if function.has("parameters") else "",
    )


def _parameters(function: JsonFields) -> str:
    """Return the schema of a function's parameters as text."""
    return json.dumps(function.object("parameters").raw)


def _function(fields: JsonFields) -> JsonFields:
    if fields.text("type", "function") != "function":
        raise fields.wrong("type", "function: this server calls nothing else")
    if not fields.has("function"):
        raise fields.wrong("function", "an object", "missing")
    return fields.object("function")
