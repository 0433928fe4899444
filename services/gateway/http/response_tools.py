"""Tools of `/v1/responses`: as in chats, with their fields beside their type."""

from __future__ import annotations

import re

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.chat_tools import CHOICES, read_parameters
from services.gateway.http.error_object import FieldNames
from services.gateway.http.json_fields import JsonFields
from services.gateway.http.sampling_fields import wrong_choice

TOOL_FIELD_NAMES: FieldNames = (
    (re.compile(r"\bchat\.tools\["), "tools["),
    (re.compile(r"\bchat\.tool_name\b"), "tool_choice.name"),
)


def read_response_tools(chat: pb.ChatPrompt, body: JsonFields) -> None:
    """Into `chat`. Raises WrongField; names and schemas are checked with the rest of the request."""
    chat.tools.extend(_tool(tool) for tool in body.objects("tools"))
    if isinstance(body.value("tool_choice"), dict):
        choice = body.object("tool_choice")
        _check_function(choice)
        if not choice.text("name"):
            raise choice.wrong("name", "the name of one of tools", "")
        chat.tool_name = choice.text("name")
    else:
        word = body.text("tool_choice", "auto")
        if word not in CHOICES:
            raise wrong_choice(body, "tool_choice", (*CHOICES, "a function"))
        chat.tool_choice = CHOICES[word]
    if body.has("parallel_tool_calls"):
        chat.parallel_tool_calls = body.flag("parallel_tool_calls")


def _tool(tool: JsonFields) -> pb.Tool:
    _check_function(tool)
    return pb.Tool(
        name=tool.text("name"),
        description=tool.text("description"),
        parameters=read_parameters(tool) if tool.has("parameters") else "",
    )


def _check_function(fields: JsonFields) -> None:
    if fields.text("type") != "function":
        raise fields.wrong("type", "function: this server calls nothing by itself")
