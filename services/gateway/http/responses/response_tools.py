"""Tools of `/v1/responses`: as in chats, with their fields beside their type."""

from __future__ import annotations

import re

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.completions.error_object import FieldNames
from services.gateway.http.fields.chat_tools import read_tools_into
from services.gateway.http.fields.json_fields import JsonFields

TOOL_FIELD_NAMES: FieldNames = (
    (re.compile(r"\bchat\.tools\["), "tools["),
    (re.compile(r"\bchat\.tool_name\b"), "tool_choice.name"),
)


def read_response_tools(chat: pb.ChatPrompt, body: JsonFields) -> None:
    """Read the tools of a body; raises as `read_tools_into` does."""
    read_tools_into(chat, body, _function)


def _function(fields: JsonFields) -> JsonFields:
    if fields.text("type") != "function":
        raise fields.wrong("type", "function: this server calls nothing by itself")
    return fields
