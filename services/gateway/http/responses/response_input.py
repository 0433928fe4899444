"""The input of `/v1/responses`: its items as the messages of a chat, and what of the body each of them is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.completions.error_object import TOO_LONG, FieldNames
from services.gateway.http.fields.json_fields import JsonFields
from services.gateway.http.fields.sampling_fields import wrong_choice

TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text")
ITEM_TYPES = ("message", "reasoning", "function_call", "function_call_output")


@dataclass(slots=True)
class ResponseInput:
    """`names` are the fields of the body that the messages come from, `call_names` those of their calls."""

    messages: list[pb.ChatMessage] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    call_names: dict[tuple[int, int], str] = field(default_factory=dict)
    reasoning: str = ""
    """The thinking of the assistant before its next turn."""

    def add_message(self, name: str, message: pb.ChatMessage) -> None:
        if message.role == "assistant":
            message.reasoning, self.reasoning = self.reasoning, ""
        self.names.append(name)
        self.messages.append(message)

    def add_call(self, name: str, call: pb.ToolCall) -> None:
        """Add a call to the assistant's message before it: all that one turn called is one message."""
        if not self.messages or self.messages[-1].role != "assistant":
            self.add_message(name, pb.ChatMessage(role="assistant"))
        message = self.messages[-1]
        self.call_names[len(self.messages) - 1, len(message.tool_calls)] = name
        message.tool_calls.append(call)

    @property
    def field_names(self) -> FieldNames:
        def message_name(found: re.Match[str]) -> str:
            number = int(found[1])
            return self.names[number] if number < len(self.names) else found[0]

        def call_name(found: re.Match[str]) -> str:
            return self.call_names.get((int(found[1]), int(found[2])), found[0])

        def call_id_name(found: re.Match[str]) -> str:
            return f"{call_name(found)}.call_id"

        def result_id_name(found: re.Match[str]) -> str:
            return f"{message_name(found)}.call_id"

        return (
            (TOO_LONG, "input"),
            (re.compile(r"\bchat\.messages\[(\d+)\]\.tool_calls\[(\d+)\]\.id\b"), call_id_name),
            (re.compile(r"\bchat\.messages\[(\d+)\]\.tool_calls\[(\d+)\]"), call_name),
            (re.compile(r"\bchat\.messages\[(\d+)\]\.tool_call_id\b"), result_id_name),
            (re.compile(r"\bchat\.messages\[(\d+)\]"), message_name),
            (re.compile(r"\bchat\.messages\b"), "input"),
        )


def read_input(body: JsonFields) -> ResponseInput:
    """Raises WrongField for what is no item that this server knows."""
    read = ResponseInput()
    if instructions := body.text("instructions"):
        read.add_message("instructions", pb.ChatMessage(role="system", content=instructions))
    if body.value("input") in (None, "", []):
        raise body.wrong("input", "a text, or at least one message", "empty")
    if isinstance(body.value("input"), str):
        read.add_message("input", pb.ChatMessage(role="user", content=body.text("input")))
        return read
    for index, item in enumerate(body.objects("input")):
        _read_item(read, f"input[{index}]", item)
    return read


def _read_item(read: ResponseInput, name: str, item: JsonFields) -> None:
    match item.text("type", "message"):
        case "message":
            read.add_message(name, pb.ChatMessage(role=item.text("role"), content=_text(item, "content")))
        case "reasoning":
            read.reasoning = _text(item, "content")
        case "function_call":
            call = pb.ToolCall(
                id=item.text("call_id"), name=item.text("name"), arguments=item.text("arguments")
            )
            read.add_call(name, call)
        case "function_call_output":
            message = pb.ChatMessage(
                role="tool", content=_text(item, "output"), tool_call_id=item.text("call_id")
            )
            read.add_message(name, message)
        case _:
            raise wrong_choice(item, "type", ITEM_TYPES)


def _text(item: JsonFields, name: str) -> str:
    """A text, or parts that are all text."""
    if not isinstance(item.value(name), list):
        return item.text(name)
    texts = []
    for part in item.objects(name):
        if part.value("type") not in TEXT_PARTS:
            raise part.wrong("type", "input_text or output_text: this model reads nothing else")
        texts.append(part.text("text"))
    return "".join(texts)
