"""Tools for models whose chat templates know of none: told by a prompt of ours, in turns that all know."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shared.messages import ChatTurn, Tool, ToolCall
from shared.text.tool_formats import HERMES, ToolFormat

PLAIN_FORMAT = HERMES
"""The format that this prompt teaches."""
TOOL_PROMPT = """You can call functions. Each line is one of them:
{tools}
To call a function, answer with
<tool_call>
{{"name": "its name", "arguments": {{its arguments}}}}
</tool_call>
Its result comes back between <tool_response> and </tool_response>."""
RESULT_ROLES = ("tool", "function")


def plain_turns(turns: Sequence[ChatTurn], tools: Sequence[Tool]) -> list[ChatTurn]:
    """The same conversation in words: tools are told by the system, calls and results are texts."""
    plain: list[ChatTurn] = []
    after_result = False
    for turn in turns:
        is_result = turn.role in RESULT_ROLES
        if not is_result:
            plain.append(ChatTurn(turn.role, _said(turn), turn.name, reasoning=turn.reasoning))
        elif after_result:  # results of one answer are one turn: many templates want turns to alternate
            plain[-1] = ChatTurn("user", f"{plain[-1].content}\n{_result(turn)}")
        else:
            plain.append(ChatTurn("user", _result(turn)))
        after_result = is_result
    if not tools:
        return plain
    if plain[0].role == "system":
        return [ChatTurn("system", f"{plain[0].content}\n\n{tool_prompt(tools)}"), *plain[1:]]
    return [ChatTurn("system", tool_prompt(tools)), *plain]


def tool_prompt(tools: Sequence[Tool]) -> str:
    lines = (json.dumps(tool_object(tool)["function"], ensure_ascii=False) for tool in tools)
    return TOOL_PROMPT.format(tools="\n".join(lines))


def tool_object(tool: Tool) -> Mapping[str, Any]:
    """Write a tool as OpenAI and chat templates do."""
    parameters = json.loads(tool.parameters) if tool.parameters else {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def written_calls(calls: Sequence[ToolCall], tool_format: ToolFormat) -> str:
    """Write calls as the model would have written them."""
    between = tool_format.between
    first = tool_format.opening + tool_format.begin
    parts = [tool_format.head + call.name + tool_format.middle + call.arguments for call in calls]
    return first + f"{tool_format.tail}{between}".join(parts) + tool_format.tail + tool_format.end


def _result(turn: ChatTurn) -> str:
    return f"<tool_response>\n{turn.content}\n</tool_response>"


def _said(turn: ChatTurn) -> str:
    if not turn.tool_calls:
        return turn.content
    calls = written_calls(turn.tool_calls, PLAIN_FORMAT)
    return f"{turn.content}\n{calls}" if turn.content else calls
