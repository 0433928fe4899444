"""Bodies of `/v1/responses` as requests of the contract; what is wrong is named as clients know it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.completions.error_object import error_object
from services.gateway.http.fields.json_fields import JsonFields
from services.gateway.http.responses.responses import (
    MAX_METADATA_CHARS,
    MAX_METADATA_ENTRIES,
    MAX_METADATA_NAME_CHARS,
    AskedResponse,
    read_response,
)
from services.gateway.request.chat_prompt import MAX_CHAT_MESSAGES
from services.gateway.request.prompt_limits import PromptLimits
from services.gateway.request.request import validate_request
from shared.errors import InvalidRequest

LIMITS = PromptLimits(1 << 20)
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}}
FUNCTION = {"type": "function", "name": "f", "parameters": {}}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "16"}


def message(content: Any, role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def asked(**body: Any) -> AskedResponse:
    return read_response(JsonFields({"input": "hello", **body}), {}, 77)


def refusal(**body: Any) -> dict[str, Any]:
    """The error object of a wrong body, wherever it is found out."""
    names: Any = ()
    with pytest.raises(InvalidRequest) as caught:  # noqa: PT012 - the names are those of what was read
        response = asked(**body)
        names = response.field_names
        LIMITS.check_request(validate_request(response.choices.prompts[0], drawn_seed=0))
    error: dict[str, Any] = error_object(caught.value, names)[2]["error"]
    return error


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no input": ({"input": None}, "input"),
    "empty text": ({"input": ""}, "input"),
    "no items": ({"input": []}, "input"),
    "input type": ({"input": 5}, "input"),
    "item type": ({"input": ["hello"]}, "input[0]"),
    "another item": ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    "role": ({"input": [message("x", role="boss")]}, "input[0].role"),
    "role behind instructions": ({"instructions": "a", "input": [message("x", role="b")]}, "input[0].role"),
    "no content": ({"input": [message("a"), message("")]}, "input[1].content"),
    "an image": ({"input": [message([{"type": "input_image"}])]}, "input[0].content[0].type"),
    "too many messages": ({"input": [message("x")] * (MAX_CHAT_MESSAGES + 1)}, "input"),
    "too much text": ({"input": "x" * (LIMITS.max_text_bytes + 1)}, "input"),
    "instructions": ({"instructions": ["a"]}, "instructions"),
    "length": ({"max_output_tokens": 0}, "max_output_tokens"),
    "min over max": ({"min_tokens": 9, "max_output_tokens": 3}, "min_tokens"),
    "temperature": ({"temperature": "hot"}, "temperature"),
    "format": ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    "format type": ({"text": {"format": "json"}}, "text.format"),
    "no schema": ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    "long schema": (
        {"text": {"format": {"type": "json_schema", "schema": {"title": "x" * 70_000}}}},
        "text.format.schema",
    ),
    "stream": ({"stream": "yes"}, "stream"),
    "store": ({"store": "yes"}, "store"),
    "truncation": ({"truncation": "oldest"}, "truncation"),
    "earlier response": ({"previous_response_id": "resp_1"}, "previous_response_id"),
    "conversation": ({"conversation": {"id": "conv_1"}}, "conversation"),
    "background": ({"background": True}, "background"),
    "kept prompt": ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    "a tool of the server's": ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    "tools type": ({"tools": FUNCTION}, "tools"),
    "tool name": ({"tools": [{**FUNCTION, "name": "a b"}]}, "tools[0].name"),
    "tool parameters": ({"tools": [{**FUNCTION, "parameters": {"type": "array"}}]}, "tools[0].parameters"),
    "tool choice": ({"tools": [FUNCTION], "tool_choice": "maybe"}, "tool_choice"),
    "choice of a tool of the server's": (
        {"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools"}},
        "tool_choice.type",
    ),
    "choice without a name": ({"tools": [FUNCTION], "tool_choice": {"type": "function"}}, "tool_choice.name"),
    "choice of another": (
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}},
        "tool_choice.name",
    ),
    "parallel calls": ({"tools": [FUNCTION], "parallel_tool_calls": 1}, "parallel_tool_calls"),
    "call without an id": ({"input": [message("a"), {**CALL, "call_id": ""}]}, "input[1].call_id"),
    "call arguments": ({"input": [message("a"), CALL, {**CALL, "arguments": "["}]}, "input[2].arguments"),
    "result of no call": (
        {"instructions": "a", "input": [message("a"), CALL, {**RESULT, "call_id": "other"}]},
        "input[2].call_id",
    ),
    "result type": ({"input": [message("a"), CALL, {**RESULT, "output": 3}]}, "input[2].output"),
    "logprobs": ({"top_logprobs": 21}, "top_logprobs"),
    "logprobs that are not shown": ({"top_logprobs": 2}, "top_logprobs"),
    "metadata": ({"metadata": {"a": 1}}, "metadata.a"),
    "long metadata": ({"metadata": {"a": "x" * (MAX_METADATA_CHARS + 1)}}, "metadata.a"),
    "long name": ({"metadata": {"x" * (MAX_METADATA_NAME_CHARS + 1): "a"}}, "metadata"),
    "much metadata": ({"metadata": {str(i): "a" for i in range(MAX_METADATA_ENTRIES + 1)}}, "metadata"),
    "option": ({"penstock": {"deadline_ms": 0}}, "penstock.deadline_ms"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_field_is_named(name: str) -> None:
    body, param = WRONG[name]
    error = refusal(**body)
    assert (error["param"], error["type"], error["code"]) == (param, "invalid_request_error", "invalid_value")
    assert "sampling." not in error["message"]
    assert "chat.messages" not in error["message"]


def messages(**body: Any) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in asked(**body).choices.prompts[0].chat.messages]


def test_a_text_is_a_message_of_the_user_and_instructions_stand_in_front() -> None:
    assert messages(instructions="be brief") == [("system", "be brief"), ("user", "hello")]


def test_messages_come_with_or_without_a_type_and_an_answer_as_it_was_given() -> None:
    given = [
        message("be brief", role="developer"),
        message([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}], type="message"),
        message(
            [{"type": "output_text", "text": "c", "annotations": []}],
            role="assistant",
            id="msg_1",
            type="message",
            status="completed",
        ),
        message("d"),
    ]
    assert messages(input=given) == [
        ("developer", "be brief"),
        ("user", "ab"),
        ("assistant", "c"),
        ("user", "d"),
    ]


def test_sampling_is_read_by_the_names_of_responses() -> None:
    sampling = asked(max_output_tokens=5, temperature=0.5, top_p=0.25, seed=-1).sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (5, 0.5, 0.25)
    assert sampling.seed == 2**64 - 1
    assert asked(max_tokens=5).sampling.max_tokens == 77


def test_a_text_format_is_a_constraint() -> None:
    schema = {"type": "json_schema", "name": "x", "strict": True, "schema": SCHEMA}
    assert json.loads(asked(text={"format": schema}).sampling.json_schema) == SCHEMA
    assert asked(text={"format": {"type": "json_object"}}).sampling.json_object
    assert not asked(text={"format": {"type": "text"}}).sampling.WhichOneof("constraint")


def test_logprobs_are_computed_where_they_are_included() -> None:
    include = ["message.output_text.logprobs", "reasoning.encrypted_content"]
    assert asked(include=include, top_logprobs=3).sampling.logprobs == 3
    assert not asked(include=["reasoning.encrypted_content"]).sampling.HasField("logprobs")


def test_nulls_and_what_does_not_ask_for_keeping_are_tolerated() -> None:
    nulls = dict.fromkeys(["instructions", "previous_response_id", "metadata", "text", "tools", "store"])
    unkept = {"background": False, "store": True, "tool_choice": "auto"}
    tolerated = {"truncation": "disabled", "reasoning": {"effort": None, "summary": "auto"}, "user": None}
    assert (
        asked(**nulls).choices.prompts
        == asked(**unkept, **tolerated).choices.prompts
        == asked().choices.prompts
    )


@pytest.mark.parametrize(
    ("truncation", "trimming", "fits"),
    [("auto", None, True), ("disabled", None, False), ("auto", False, False)],
)
def test_a_conversation_goes_without_its_oldest_turns_where_it_may(
    truncation: str, trimming: bool | None, fits: bool
) -> None:
    options = {} if trimming is None else {"penstock": {"trimming": trimming}}
    read = asked(truncation=truncation, **options)
    assert read.choices.prompts[0].trimming.fit_context == fits
    assert read.repeated["truncation"] == truncation


def test_tools_have_their_fields_beside_their_type() -> None:
    tool = {**FUNCTION, "description": "d", "parameters": SCHEMA, "strict": True}
    chat = asked(tools=[tool], tool_choice={"type": "function", "name": "f"}, parallel_tool_calls=False)
    read = chat.choices.prompts[0].chat
    assert [(each.name, each.description, json.loads(each.parameters)) for each in read.tools] == [
        ("f", "d", SCHEMA)
    ]
    assert (read.tool_name, read.parallel_tool_calls) == ("f", False)
    assert chat.repeated["tools"] == [tool]
    assert asked(tools=[tool], tool_choice="none").choices.prompts[0].chat.tool_choice == pb.TOOL_CHOICE_NONE


def test_what_one_turn_called_is_one_message_and_results_name_their_calls() -> None:
    second = {**CALL, "call_id": "c2", "arguments": '{"a": 1}'}
    parts = {**RESULT, "call_id": "c2", "output": [{"type": "input_text", "text": "17"}]}
    said = message([{"type": "output_text", "text": "So."}], role="assistant", type="message")
    read = (
        asked(input=[message("a"), said, CALL, second, RESULT, parts, CALL]).choices.prompts[0].chat.messages
    )
    assert [each.role for each in read] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [(call.id, call.arguments) for call in read[1].tool_calls] == [("c1", "{}"), ("c2", '{"a": 1}')]
    assert [(each.tool_call_id, each.content) for each in read[2:4]] == [("c1", "16"), ("c2", "17")]
    assert read[1].content == "So."


def test_metadata_at_its_limits_is_repeated() -> None:
    given = {
        f"{i:x<{MAX_METADATA_NAME_CHARS}}": "a" * MAX_METADATA_CHARS for i in range(MAX_METADATA_ENTRIES)
    }
    assert asked(metadata=given).repeated["metadata"] == given
