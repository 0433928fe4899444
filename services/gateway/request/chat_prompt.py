"""The chat of a request: its messages and tools, checked, as the tokenizer takes them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.json_parts import JsonLimits
from services.gateway.request.tool_calls import TOOL_NAME
from services.gateway.request.tool_use import ToolUse
from shared.errors import InvalidRequest
from shared.messages import ChatTurn, Tool, ToolCall
from shared.text.chat_roles import CHAT_ROLES

MAX_CHAT_MESSAGES = 256
"""The most messages of a chat."""
MAX_TOOLS = 128
"""The most tools of a request."""
MAX_CHAT_CALLS = 1024
"""The most calls in all messages of a chat."""
MAX_ARGUMENT_PARTS = 50_000
"""The most arrays and objects, and the most texts or values in them, of all arguments of calls in a chat."""
MAX_TOOLS_CHARS = 1 << 17
"""Descriptions and schemas of all tools together."""
MAX_CALL_ID_CHARS = 64
"""The longest id of a tool's call."""
MAX_JSON_DEPTH = 128
"""The deepest nesting of objects and arrays in schemas and arguments."""
ARGUMENT_LIMITS = JsonLimits(MAX_ARGUMENT_PARTS, MAX_ARGUMENT_PARTS, MAX_ARGUMENT_PARTS)
SPEAKER_NAME = re.compile(r"[^\s<|\\/>]{0,64}")


def read_turns(chat: pb.ChatPrompt) -> tuple[ChatTurn, ...]:
    """Raises InvalidRequest that names what is wrong; their size is checked where the bus is known."""
    if not chat.messages:
        raise InvalidRequest("chat.messages is empty: send at least one message")
    if len(chat.messages) > MAX_CHAT_MESSAGES:
        raise InvalidRequest(f"chat.messages has {len(chat.messages)}: send at most {MAX_CHAT_MESSAGES}")
    calls = sum(len(message.tool_calls) for message in chat.messages)
    if calls > MAX_CHAT_CALLS:
        raise InvalidRequest(f"chat.messages hold {calls} tool calls: send at most {MAX_CHAT_CALLS}")
    if calls:
        _check_arguments(chat.messages)
    known_ids: set[str] = set()
    for index, message in enumerate(chat.messages):
        _check_message(f"chat.messages[{index}]", message, known_ids)
    return tuple(map(_turn, chat.messages))


def read_tools(chat: pb.ChatPrompt) -> ToolUse:
    """Return what the answer may call: nothing where the choice is none."""
    if len(chat.tools) > MAX_TOOLS:
        raise InvalidRequest(f"chat.tools has {len(chat.tools)} tools: send at most {MAX_TOOLS}")
    size = sum(len(tool.description) + len(tool.parameters) for tool in chat.tools)
    if size > MAX_TOOLS_CHARS:
        raise InvalidRequest(f"chat.tools hold {size} characters: send at most {MAX_TOOLS_CHARS}")
    tools = tuple(_tool(f"chat.tools[{index}]", tool) for index, tool in enumerate(chat.tools))
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(f"chat.tools[{index}].name is {name!r} once more: send each name once")
    if chat.tool_choice not in pb.ToolChoice.values():
        raise InvalidRequest(
            f"chat.tool_choice is {int(chat.tool_choice)}: send TOOL_CHOICE_AUTO, TOOL_CHOICE_NONE "
            "or TOOL_CHOICE_REQUIRED"
        )
    if chat.tool_name and chat.tool_choice == pb.TOOL_CHOICE_NONE:
        raise InvalidRequest("chat.tool_name has no use with TOOL_CHOICE_NONE: leave one of them out")
    if chat.tool_name and chat.tool_name not in names:
        raise InvalidRequest(f"chat.tool_name is {chat.tool_name[:64]!r}: send the name of one of chat.tools")
    required = bool(chat.tool_name) or chat.tool_choice == pb.TOOL_CHOICE_REQUIRED
    if required and not tools:
        raise InvalidRequest("chat.tools is empty: send what is to be called, or another tool_choice")
    if chat.tool_choice == pb.TOOL_CHOICE_NONE:
        return ToolUse()
    parallel = not chat.HasField("parallel_tool_calls") or chat.parallel_tool_calls
    return ToolUse(tools, required=required, name=chat.tool_name, parallel=parallel)


def _check_arguments(messages: Sequence[pb.ChatMessage]) -> None:
    """Count all of them together: each is read on the event loop."""
    raw = ",".join(call.arguments for message in messages for call in message.tool_calls).encode()
    if what := ARGUMENT_LIMITS.broken_by(raw):
        raise InvalidRequest(f"chat.messages hold tool calls of more than {what} in arguments: send fewer")


def _check_message(path: str, message: pb.ChatMessage, known_ids: set[str]) -> None:
    """`known_ids` are those of the calls before; those of this message are added."""
    if message.role not in CHAT_ROLES:
        raise InvalidRequest(f"{path}.role is {message.role[:40]!r}: send one of {', '.join(CHAT_ROLES)}")
    if not SPEAKER_NAME.fullmatch(message.name):
        raise InvalidRequest(
            f"{path}.name is {message.name[:40]!r}: send up to 64 characters, none of them a space or <|\\/>"
        )
    if message.tool_calls and message.role != "assistant":
        raise InvalidRequest(f"{path}.tool_calls is set: send it with role assistant alone")
    for index, call in enumerate(message.tool_calls):
        _check_call(f"{path}.tool_calls[{index}]", call)
        known_ids.add(call.id)
    if message.reasoning and message.role != "assistant":
        raise InvalidRequest(f"{path}.reasoning is set: send it with role assistant alone")
    if message.tool_call_id and message.role not in ("tool", "function"):
        raise InvalidRequest(f"{path}.tool_call_id is set: send it with role tool alone")
    if message.role == "tool" and message.tool_call_id not in known_ids:
        raise InvalidRequest(
            f"{path}.tool_call_id is {message.tool_call_id[:MAX_CALL_ID_CHARS]!r}: "
            "send the id of a call of an assistant before it"
        )
    if not (message.content or message.tool_calls or message.role in ("tool", "function")):
        raise InvalidRequest(f"{path}.content is empty: send text or leave it out")


def _check_call(path: str, call: pb.ToolCall) -> None:
    if not 1 <= len(call.id) <= MAX_CALL_ID_CHARS:
        raise InvalidRequest(f"{path}.id has {len(call.id)} characters: send 1 to {MAX_CALL_ID_CHARS}")
    _check_name(f"{path}.name", call.name)
    if not isinstance(read_json(call.arguments), dict):
        raise InvalidRequest(
            f"{path}.arguments is no JSON object of at most {MAX_JSON_DEPTH} levels: send one"
        )


def _tool(path: str, tool: pb.Tool) -> Tool:
    _check_name(f"{path}.name", tool.name)
    if tool.parameters:
        schema = read_json(tool.parameters)
        if not isinstance(schema, dict) or schema.get("type", "object") != "object":
            raise InvalidRequest(
                f"{path}.parameters is no JSON Schema of an object, or has over {MAX_JSON_DEPTH} levels: "
                "send one"
            )
    return Tool(tool.name, tool.description, tool.parameters)


def _check_name(path: str, name: str) -> None:
    if not re.fullmatch(TOOL_NAME, name):
        raise InvalidRequest(f"{path} is {name[:64]!r}: send 1 to 64 letters, digits, - and _")


def _turn(message: pb.ChatMessage) -> ChatTurn:
    calls: Sequence[pb.ToolCall] = message.tool_calls
    return ChatTurn(
        message.role,
        message.content,
        message.name,
        tuple(ToolCall(call.id, call.name, call.arguments) for call in calls),
        message.tool_call_id,
        message.reasoning,
    )


def read_json(text: str) -> Any:
    """Return the value of a JSON text, or None for a text that is no JSON or is nested too deeply."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return value if _depth(value) <= MAX_JSON_DEPTH else None


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [part for part in level if isinstance(part, dict | list)]:
        depth += 1
        level = [inner for part in level for inner in (part.values() if isinstance(part, dict) else part)]
    return depth


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
