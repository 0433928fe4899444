"""Turn a conversation into the text that a model reads, as far as its chat template knows roles and tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shared.errors import InvalidRequest
from shared.messages import ChatTurn, Tool
from shared.text.chat_template import ChatTemplate
from shared.text.tool_prompt import plain_turns, tool_object


def render_chat(
    template: ChatTemplate, turns: Sequence[ChatTurn], tools: Sequence[Tool] = (), effort: str = ""
) -> str:
    """Render a conversation up to where the answer begins. Raises what `ChatTemplate.render` raises."""
    turns = [replace(turn, role=_known_role(turn.role, template)) for turn in turns]
    if template.tool_format is not None:
        return template.render(_messages(turns), [tool_object(tool) for tool in tools], effort)
    told = _messages(plain_turns(turns, tools))
    try:
        return template.render(told, effort=effort)
    except InvalidRequest:
        if not tools or turns[0].role != "user":
            raise
    # Some know no system: then the user tells of the tools.
    told[1]["content"] = f"{told[0]['content']}\n\n{told[1]['content']}"
    return template.render(told[1:], effort=effort)


def _known_role(role: str, template: ChatTemplate) -> str:
    if role == "function":
        return "tool"
    if role == "developer" and not template.knows_role(role):
        return "system"
    return role


def _messages(turns: Sequence[ChatTurn]) -> list[dict[str, Any]]:
    """Return the messages as templates expect them: what a turn has not is not there, and a result has the
    name of its tool."""
    names = {call.id: call.name for turn in turns for call in turn.tool_calls}
    return [_message(turn, turn.name or names.get(turn.tool_call_id, "")) for turn in turns]


def _message(turn: ChatTurn, name: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if name:
        message["name"] = name
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.tool_call_id:
        message["tool_call_id"] = turn.tool_call_id
    if turn.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": _function(call.name, call.arguments)}
            for call in turn.tool_calls
        ]
    return message


def _function(name: str, arguments: str) -> Mapping[str, Any]:
    return {"name": name, "arguments": json.loads(arguments)}
