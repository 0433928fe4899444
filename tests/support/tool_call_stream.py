"""Read the calls of tools from a text that comes in parts."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.tool_calls import ToolCallParser
from shared.text.tool_formats import ToolFormat


class ReadCalls(NamedTuple):
    """The text around the calls, of each call its id, name and arguments, and whether there was any."""

    text: str
    calls: list[tuple[str, str, str]]
    has_called: bool


def read_calls(tool_format: ToolFormat, parts: Iterable[str]) -> ReadCalls:
    numbers = count()
    parser = ToolCallParser(tool_format, lambda: f"id{next(numbers)}")
    text, calls = "", list[list[str]]()
    for part in parts:
        delta = pb.TextDelta(text=part)
        parser.parse_delta(delta)
        text += delta.text
        for call in delta.tool_calls:
            if call.id:
                assert call.index == len(calls)
                calls.append([call.id, call.name, ""])
            calls[call.index][2] += call.arguments
    rows = [(key, name, arguments) for key, name, arguments in calls]
    return ReadCalls(text + parser.held_text(), rows, parser.has_called)
