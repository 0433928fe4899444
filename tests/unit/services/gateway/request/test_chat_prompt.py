"""Messages and tools of a chat at the edge of every limit: what is allowed passes, one step more is named."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request import chat_prompt as rules
from services.gateway.request.chat_prompt import MAX_ARGUMENT_PARTS, MAX_TOOLS_CHARS
from services.gateway.request.request import Request, validate_request
from services.gateway.request.tool_use import ToolUse
from shared.errors import InvalidRequest
from shared.messages import ChatTurn, Tool, ToolCall

USER = pb.ChatMessage(role="user", content="x")
CALL = pb.ToolCall(id="c1", name="f", arguments='{"a": 1}')
CALLED = pb.ChatMessage(role="assistant", tool_calls=[CALL])
CALLERS = [pb.ChatMessage(role="assistant", tool_calls=[CALL] * (rules.MAX_CHAT_CALLS // 2))] * 2
RESULT = pb.ChatMessage(role="tool", content="3", tool_call_id="c1")
F = pb.Tool(name="f", description="d", parameters='{"type": "object"}')
G = pb.Tool(name="g")


def chat(*messages: pb.ChatMessage, **fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(chat=pb.ChatPrompt(messages=messages or [USER], **fields))


def calls(*made: pb.ToolCall) -> pb.GenerateRequest:
    return chat(USER, pb.ChatMessage(role="assistant", tool_calls=made))


def call(**fields: Any) -> pb.GenerateRequest:
    return calls(pb.ToolCall(**{"id": "c", "name": "f", "arguments": "{}", **fields}))


def tool(**fields: Any) -> pb.GenerateRequest:
    return chat(tools=[pb.Tool(**{"name": "f", **fields})])


def nested(levels: int) -> str:
    return '{"a":' * (levels - 1) + "{}" + "}" * (levels - 1)


def arrays(count: int) -> str:
    """Arguments of so many arrays and objects."""
    return '{"a": [' + "[]," * (count - 3) + "[]]}"


def valid(message: pb.GenerateRequest) -> Request:
    return validate_request(message, drawn_seed=7)


ALLOWED = {
    "a round trip": chat(USER, CALLED, RESULT),
    "an empty result": chat(USER, CALLED, pb.ChatMessage(role="tool", tool_call_id="c1")),
    "a function without an id": chat(USER, pb.ChatMessage(role="function", content="3", name="f")),
    "longest name": chat(pb.ChatMessage(role="user", content="x", name="n" * 64)),
    "longest id": call(id="c" * rules.MAX_CALL_ID_CHARS),
    "longest tool name": call(name="n" * 64),
    "most calls": calls(*[CALL] * rules.MAX_CHAT_CALLS),
    "most parts of arguments": call(arguments=arrays(MAX_ARGUMENT_PARTS)),
    "brackets in arguments' texts": call(arguments='{"a": "' + "[,{" * MAX_ARGUMENT_PARTS + '"}'),
    "most tools": chat(tools=[pb.Tool(name=f"f{n}") for n in range(rules.MAX_TOOLS)]),
    "most told of tools": tool(description="d" * MAX_TOOLS_CHARS),
    "deepest schema": tool(parameters=nested(rules.MAX_JSON_DEPTH)),
    "required": chat(tools=[F], tool_choice=pb.TOOL_CHOICE_REQUIRED),
    "named": chat(tools=[F, G], tool_name="g"),
}

REFUSED = {
    "name with a space": (
        chat(pb.ChatMessage(role="user", content="x", name="a b")),
        "chat.messages[0].name",
    ),
    "long name": (chat(pb.ChatMessage(role="user", content="x", name="n" * 65)), "chat.messages[0].name"),
    "nothing said": (chat(USER, pb.ChatMessage(role="assistant")), "chat.messages[1].content"),
    "a user's calls": (chat(pb.ChatMessage(role="user", tool_calls=[CALL])), "chat.messages[0].tool_calls"),
    "many calls": (chat(CALLED, *CALLERS), "chat.messages"),
    "call without id": (call(id=""), "chat.messages[1].tool_calls[0].id"),
    "long id": (call(id="c" * 65), "chat.messages[1].tool_calls[0].id"),
    "call without name": (call(name=""), "chat.messages[1].tool_calls[0].name"),
    "many parts of arguments": (call(arguments=arrays(MAX_ARGUMENT_PARTS + 1)), "chat.messages"),
    "many parts of all arguments": (
        calls(*[pb.ToolCall(id="c", name="f", arguments=arrays(MAX_ARGUMENT_PARTS // 2 + 1))] * 2),
        "chat.messages",
    ),
    "arguments no JSON": (call(arguments="{"), "chat.messages[1].tool_calls[0].arguments"),
    "arguments no object": (call(arguments="[1]"), "chat.messages[1].tool_calls[0].arguments"),
    "result of nothing": (chat(USER, RESULT), "chat.messages[1].tool_call_id"),
    "result before its call": (chat(USER, RESULT, CALLED), "chat.messages[1].tool_call_id"),
    "result without id": (chat(USER, CALLED, pb.ChatMessage(role="tool")), "chat.messages[2].tool_call_id"),
    "a user's id": (
        chat(pb.ChatMessage(role="user", content="x", tool_call_id="c1")),
        "chat.messages[0].tool_call_id",
    ),
    "tool without name": (tool(name=""), "chat.tools[0].name"),
    "tool with a long name": (tool(name="n" * 65), "chat.tools[0].name"),
    "tool with a wrong name": (tool(name="a.b"), "chat.tools[0].name"),
    "tools of one name": (chat(tools=[F, G, F]), "chat.tools[2].name"),
    "schema no JSON": (tool(parameters="{"), "chat.tools[0].parameters"),
    "deep schema": (tool(parameters='{"a":' * 20_000), "chat.tools[0].parameters"),
    "schema nested too deeply": (
        tool(parameters=nested(rules.MAX_JSON_DEPTH + 1)),
        "chat.tools[0].parameters",
    ),
    "arguments with no number": (call(arguments='{"a": NaN}'), "chat.messages[1].tool_calls[0].arguments"),
    "schema no object": (tool(parameters="true"), "chat.tools[0].parameters"),
    "schema of another type": (tool(parameters='{"type": "array"}'), "chat.tools[0].parameters"),
    "many tools": (
        chat(tools=[pb.Tool(name=f"f{n}") for n in range(rules.MAX_TOOLS + 1)]),
        "chat.tools",
    ),
    "too much told": (tool(description="d" * (MAX_TOOLS_CHARS + 1)), "chat.tools"),
    "a schema that is too large to be read": (tool(parameters="[" * (MAX_TOOLS_CHARS + 1)), "chat.tools"),
    "unknown choice": (chat(tools=[F], tool_choice=9), "chat.tool_choice"),
    "unknown tool": (chat(tools=[F], tool_name="g"), "chat.tool_name"),
    "a name and none": (chat(tools=[F], tool_name="f", tool_choice=pb.TOOL_CHOICE_NONE), "chat.tool_name"),
    "required of none": (chat(tool_choice=pb.TOOL_CHOICE_REQUIRED), "chat.tools"),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_everything_up_to_the_limits_is_taken(name: str) -> None:
    valid(ALLOWED[name])


@pytest.mark.parametrize("name", REFUSED)
def test_everything_else_is_refused_by_its_name(name: str) -> None:
    message, field = REFUSED[name]
    with pytest.raises(InvalidRequest) as refused:
        valid(message)
    assert refused.value.message.startswith(f"{field} ")


def test_what_is_too_much_is_refused_before_it_is_read() -> None:
    """Reading megabytes of empty arrays takes some hundred megabytes, and holds up every stream meanwhile."""
    message = call(arguments=arrays(1_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="arrays and objects"):
            valid(message)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10 * len(message.SerializeToString())


def test_the_turns_of_a_conversation_with_calls_are_all_kept() -> None:
    named = pb.ChatMessage(role="user", content="x", name="Ann")
    assert valid(chat(named, CALLED, RESULT)).chat == (
        ChatTurn("user", "x", "Ann"),
        ChatTurn("assistant", "", "", (ToolCall("c1", "f", '{"a": 1}'),)),
        ChatTurn("tool", "3", "", (), "c1"),
    )


TOOLS = (Tool("f", "d", '{"type": "object"}'), Tool("g", "", ""))


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, ToolUse(TOOLS)),
        ({"parallel_tool_calls": False}, ToolUse(TOOLS, parallel=False)),
        ({"tool_choice": pb.TOOL_CHOICE_REQUIRED}, ToolUse(TOOLS, required=True)),
        ({"tool_choice": pb.TOOL_CHOICE_NONE}, ToolUse()),
        ({"tool_name": "g"}, ToolUse(TOOLS, required=True, name="g")),
    ],
)
def test_a_choice_says_what_the_model_is_told_and_held_to(fields: Any, wanted: ToolUse) -> None:
    assert valid(chat(tools=[F, G], **fields)).tool_use == wanted


def test_of_constraints_json_alone_goes_with_tools() -> None:
    message = chat(tools=[F])
    message.sampling.json_schema = "{}"
    valid(message)
    message.sampling.json_schema = "{"
    with pytest.raises(InvalidRequest, match=r"^sampling\.json_schema is no JSON, or nested too deeply"):
        valid(message)
    message.sampling.regex = "a"
    with pytest.raises(InvalidRequest, match=r"^chat\.tools cannot be called beside a regex"):
        valid(message)
    message.chat.tool_choice = pb.TOOL_CHOICE_NONE
    valid(message)


def test_what_is_told_of_tools_and_calls_counts_as_prompt() -> None:
    bare = valid(chat(USER, pb.ChatMessage(role="assistant", content="y"))).prompt_bytes
    assert bare == 2
    told = ("x", "c1", "f", '{"a": 1}', "f", "d", '{"type": "object"}')
    assert valid(chat(USER, CALLED, tools=[F])).prompt_bytes == len("".join(told))
