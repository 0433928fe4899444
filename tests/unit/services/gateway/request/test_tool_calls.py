"""Calls are read out of a text however it is cut into deltas; what is no call stays text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.tool_calls import CALL_ID_CHARS, ToolCallParser, new_call_id
from shared.text.tool_formats import HERMES, LLAMA, MISTRAL
from tests.support.tool_call_stream import ReadCalls, read_calls

NESTED = '{"q": "a } \\" ] {", "deep": [{"x": [1, 2]}]}'


def splits(text: str) -> Iterator[list[str]]:
    """Whole, in single characters, in every two parts, and in groups of every small size at every offset."""
    yield [text]
    for at in range(1, len(text)):
        yield [text[:at], text[at:]]
    for size in range(1, 6):
        for offset in range(size):
            yield [text[:offset], *(text[i : i + size] for i in range(offset, len(text), size))]


ANSWERS = {
    "hermes, one call": (
        HERMES,
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        ReadCalls("", [("id0", "get_weather", '{"city": "Paris"}')], True),
    ),
    "hermes, text before": (
        HERMES,
        'I < you <tool  look.\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
        ReadCalls("I < you <tool  look.", [("id0", "f", "{}")], True),
    ),
    "hermes, several": (
        HERMES,
        f'<tool_call>\n{{"name": "f", "arguments": {NESTED}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g-2", "arguments": {"b": 1}}\n</tool_call>',
        ReadCalls("", [("id0", "f", NESTED), ("id1", "g-2", '{"b": 1}')], True),
    ),
    "hermes, only text": (HERMES, "a <tool_cal\n ", ReadCalls("a <tool_cal\n ", [], False)),
    "hermes, cut in its arguments": (
        HERMES,
        '<tool_call>\n{"name": "f", "arguments": {"a": "b',
        ReadCalls("", [("id0", "f", '{"a": "b')], False),
    ),
    "hermes, cut behind its arguments": (
        HERMES,
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_',
        ReadCalls("", [("id0", "f", "{}")], False),
    ),
    "hermes, cut before its name is known": (
        HERMES,
        'so \n<tool_call>\n{"name": "get_we',
        ReadCalls('so \n<tool_call>\n{"name": "get_we', [], False),
    ),
    "hermes, the second cut before its name": (
        HERMES,
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\n{"na',
        ReadCalls('\n<tool_call>\n{"na', [("id0", "f", "{}")], False),
    ),
    "llama, a call": (
        LLAMA,
        f'{{"name": "f", "parameters": {NESTED}}}',
        ReadCalls("", [("id0", "f", NESTED)], True),
    ),
    "llama, text": (LLAMA, 'see {"name": "f"}', ReadCalls('see {"name": "f"}', [], False)),
    "llama, an object": (LLAMA, '{"name": 3}', ReadCalls('{"name": 3}', [], False)),
    "llama, cut": (LLAMA, '{"name": "f', ReadCalls('{"name": "f', [], False)),
    "mistral, two calls": (
        MISTRAL,
        f'[TOOL_CALLS] [{{"name": "f", "arguments": {NESTED}}}, {{"name": "g", "arguments": {{}}}}]',
        ReadCalls("", [("id0", "f", NESTED), ("id1", "g", "{}")], True),
    ),
    "mistral, without a space": (
        MISTRAL,
        'ok [TOOL_CALLS][{"name": "f", "arguments": {}}]',
        ReadCalls("ok", [("id0", "f", "{}")], True),
    ),
    "mistral, only text": (MISTRAL, "a [TOOL] b", ReadCalls("a [TOOL] b", [], False)),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_calls_are_the_same_however_the_text_is_cut(name: str) -> None:
    tool_format, text, wanted = ANSWERS[name]
    for parts in splits(text):
        assert read_calls(tool_format, parts) == wanted, parts


def test_arguments_come_as_they_are_written() -> None:
    parser = ToolCallParser(HERMES, lambda: "id")
    got = []
    for part in ('<tool_call>\n{"name": "f", "arguments": ', '{"a"', ": 1}", "}\n</tool_call>"):
        delta = pb.TextDelta(text=part)
        parser.parse_delta(delta)
        got.append([(call.id, call.name, call.arguments) for call in delta.tool_calls])
    assert got == [[("id", "f", "")], [("", "", '{"a"')], [("", "", ": 1}")], []]


def test_text_comes_as_soon_as_no_call_can_begin_in_it() -> None:
    parser = ToolCallParser(HERMES)
    got = []
    for part in ("a", " ", "b <", "tool_c", "x\n", "."):
        delta = pb.TextDelta(text=part)
        parser.parse_delta(delta)
        got.append(delta.text)
    assert got == ["a", "", " b", "", " <tool_cx", "\n."]


def test_the_ids_of_calls_are_such_as_every_template_takes() -> None:
    made = {new_call_id() for _ in range(100)}
    assert len(made) == 100
    assert all(
        len(call_id) == CALL_ID_CHARS == 9 and call_id.isalnum() and call_id.isascii() for call_id in made
    )
