"""What a grammar of tools lets a model write is what the parser reads; everything else it forbids."""

from __future__ import annotations

import json
import random
from functools import cache

import numpy as np
import pytest
from tokenizers import Tokenizer

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.tool_calls import ToolCallParser
from services.gateway.request.tool_grammar import MAX_CALLS, tool_grammar
from services.gateway.request.tool_use import ToolUse
from shared.engine.sampling.grammar import Grammars, GrammarState
from shared.engine.sampling.id_bits import has_id, unpacked
from shared.errors import InternalError, InvalidRequest
from shared.messages import Tool, ToolCall
from shared.sampling.parameters import MAX_GRAMMAR_BYTES, Grammar
from shared.text.tool_formats import FORMATS, HERMES, LLAMA, MISTRAL, ToolFormat
from shared.text.tool_prompt import written_calls
from tests.support.data import REPOSITORY

MODEL = REPOSITORY / "shared/demo/models/target"
MARKER_ID = 5  # a special token of the model, for what it has none
EOS = 2
WEATHER = Tool(
    "get_weather",
    "of a city",
    '{"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer",'
    ' "minimum": 1, "maximum": 9}}, "required": ["city"]}',
)
CLOCK = Tool("clock", "", "")
TOOLS = (WEATHER, CLOCK)
CALL = '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}'
NOW = '{"name": "clock", "arguments": {}}'


@cache
def grammars() -> Grammars:
    return Grammars(str(MODEL), len(vocabulary()), [EOS])


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


@cache
def vocabulary() -> dict[str, int]:
    return dict(tokenizer().get_vocab(with_added_tokens=True))


def ids_of(text: str, marker: str = "") -> list[int]:
    """`marker` is one special token."""
    parts = text.split(marker) if marker else [text]
    ids = [tokenizer().encode(part, add_special_tokens=False).ids for part in parts]
    return [token_id for index, part in enumerate(ids) for token_id in ([MARKER_ID] if index else []) + part]


def allows(grammar: Grammar, ids: list[int]) -> bool:
    """Whether the answer may be these ids, and end there."""
    state = GrammarState(grammars().compile(grammar), ids)
    try:
        state.open_matcher()
    except InvalidRequest as error:
        return "completes the grammar" in str(error)
    mask = state.masks(())[0]
    assert mask is not None
    return has_id(mask, EOS)


def made(tool_format: ToolFormat, *, required: bool = False, parallel: bool = True) -> Grammar:
    return tool_grammar(TOOLS, tool_format, {}, required=required, parallel=parallel)


def random_answer(grammar: Grammar, seed: int) -> list[int]:
    """Drawn evenly from what the grammar allows."""
    state, rng, ids = GrammarState(grammars().compile(grammar)), random.Random(seed), list[int]()
    while len(ids) < 600:
        mask = state.masks(())[0]
        assert mask is not None
        choice = rng.choice(np.flatnonzero(unpacked(mask, len(vocabulary()))).tolist())
        if choice == EOS:
            break
        ids.append(choice)
        if state.advance(choice):
            break
    return ids


HERMES_CALL, HERMES_NOW = (f"<tool_call>\n{call}\n</tool_call>" for call in (CALL, NOW))


@pytest.mark.parametrize(
    ("text", "auto", "required"),
    [
        ("Hello < there", True, False),
        ("", True, False),
        (HERMES_CALL, True, True),
        (f"{HERMES_CALL}\n{HERMES_NOW}", True, True),
        (f"I look.\n{HERMES_CALL}", True, False),
        (f"{HERMES_CALL} and more", False, False),
        ("<tool_call> is a tag", False, False),
        (HERMES_CALL.removesuffix("</tool_call>"), False, False),
        (HERMES_CALL.replace("Oslo", "Bonn"), False, False),
        (HERMES_CALL.replace('"days"', '"hours"'), False, False),
        (HERMES_CALL.replace("get_weather", "get_rich"), False, False),
        (HERMES_CALL.replace('{"city": "Oslo", "days": 3}', "{}"), False, False),
    ],
)
def test_an_answer_is_text_or_calls_that_match_their_schemas(text: str, auto: bool, required: bool) -> None:
    assert allows(made(HERMES), ids_of(text)) is auto
    assert allows(made(HERMES, required=True), ids_of(text)) is required


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        (CALL.replace("arguments", "parameters"), True),
        (CALL, False),
        ("Some {text", True),
        ("", True),
        ('{"answer": 3}', False),
        (f"{CALL.replace('arguments', 'parameters')} {CALL.replace('arguments', 'parameters')}", False),
    ],
)
def test_without_an_opening_a_brace_in_front_begins_the_one_call(text: str, allowed: bool) -> None:
    assert allows(made(LLAMA), ids_of(text)) is allowed


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("tool_format", [HERMES, MISTRAL], ids=lambda each: each.name)
def test_several_calls_are_for_where_they_are_wanted(tool_format: ToolFormat, parallel: bool) -> None:
    grammar = made(tool_format, required=True, parallel=parallel)
    calls = f"{HERMES_CALL}\n{HERMES_NOW}" if tool_format is HERMES else f"[TOOL_CALLS][{CALL}, {NOW}]"
    assert allows(grammar, ids_of(calls)) is parallel


def test_there_are_so_many_calls_and_no_more() -> None:
    grammar = made(HERMES, required=True)
    assert allows(grammar, ids_of("\n".join([HERMES_NOW] * MAX_CALLS)))
    assert not allows(grammar, ids_of("\n".join([HERMES_NOW] * (MAX_CALLS + 1))))


@pytest.mark.parametrize("required", [True, False])
def test_a_marker_that_is_a_special_token_is_written_as_that_token(required: bool) -> None:
    marker = MISTRAL.opening
    grammar = tool_grammar(TOOLS, MISTRAL, {marker: MARKER_ID}, required=required, parallel=True)
    assert allows(grammar, ids_of(f"{marker} [{CALL}, {NOW}]", marker))
    assert allows(grammar, ids_of(f"{marker}[{NOW}]", marker))
    assert not allows(grammar, ids_of(f"{marker} text", marker))
    assert allows(grammar, ids_of("text alone")) is not required


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", FORMATS)
def test_whatever_the_grammar_forces_is_read_as_calls(name: str, seed: int) -> None:
    text = tokenizer().decode(random_answer(made(FORMATS[name], required=True, parallel=False), seed))
    parser, delta = ToolCallParser(FORMATS[name]), pb.TextDelta(text=text)
    parser.parse_delta(delta)
    assert parser.has_called
    assert (delta.text, parser.held_text()) == ("", "")
    (call,) = delta.tool_calls
    arguments = json.loads(call.arguments)
    assert json.dumps(arguments) == call.arguments  # spaced as templates render it
    if call.name == "clock":
        assert arguments == {}
    else:
        assert arguments["city"] in ("Oslo", "Rome")
        assert set(arguments) <= {"city", "days"}


def test_the_one_tool_that_is_named_is_the_only_one_and_called_once() -> None:
    grammar = ToolUse(TOOLS, required=True, name="clock").grammar(HERMES, {})
    assert allows(grammar, ids_of(HERMES_NOW))
    assert not allows(grammar, ids_of(HERMES_CALL))
    assert not allows(grammar, ids_of(f"{HERMES_NOW}\n{HERMES_NOW}"))


@pytest.mark.parametrize("marker_ids", [{}, {MISTRAL.opening: MARKER_ID}])
@pytest.mark.parametrize("tool_format", [HERMES, MISTRAL], ids=lambda each: each.name)
def test_an_answer_of_json_is_that_or_calls(tool_format: ToolFormat, marker_ids: dict[str, int]) -> None:
    schema = Grammar("json_schema", '{"type": "object", "properties": {"a": {"type": "boolean"}}}')
    call = written_calls([ToolCall("", "clock", "{}")], tool_format)
    marker = MISTRAL.opening if marker_ids else ""
    for required in (False, True):
        grammar = ToolUse(TOOLS, required=required).grammar(tool_format, marker_ids, schema)
        assert allows(grammar, ids_of('{"a":  true}')) is not required
        assert allows(grammar, ids_of(call, marker))
        assert not allows(grammar, ids_of("text"))


def test_where_a_call_cannot_be_told_from_an_answer_of_json_there_are_not_both() -> None:
    any_object = Grammar("json_object")
    with pytest.raises(InvalidRequest, match=r"^chat\.tools cannot be called beside an answer of JSON"):
        ToolUse(TOOLS).grammar(LLAMA, {}, any_object)
    ToolUse(TOOLS, required=True).grammar(LLAMA, {}, any_object)


def test_any_object_may_be_the_answer_beside_calls() -> None:
    grammar = ToolUse(TOOLS).grammar(HERMES, {}, Grammar("json_object"))
    assert allows(grammar, ids_of('{"x": [1]}'))
    assert not allows(grammar, ids_of("[1]"))


def test_a_schema_of_the_answer_that_no_grammar_expresses_is_blamed_on_it() -> None:
    use = ToolUse(TOOLS)
    with pytest.raises(InvalidRequest) as refused:
        grammars().compile(use.grammar(HERMES, {}, Grammar("json_schema", '{"if": {}}')))
    blamed = use.blame(refused.value)
    assert isinstance(blamed, InvalidRequest)
    assert blamed.message.startswith(
        'sampling.json_schema cannot be held to (it uses keywords that are not supported: "if"; leave them'
    )


def test_a_schema_that_allows_more_arguments_is_taken_at_its_word() -> None:
    loose = Tool("f", "", '{"type": "object", "additionalProperties": {"type": "boolean"}}')
    grammar = tool_grammar([loose], HERMES, {}, required=True, parallel=True)
    assert allows(grammar, ids_of('<tool_call>\n{"name": "f", "arguments": {"x": true}}\n</tool_call>'))


@pytest.mark.parametrize("wanted", ["", "b"])
def test_a_schema_that_no_grammar_expresses_is_blamed_on_its_tool(wanted: str) -> None:
    bad = Tool("b", "", '{"type": "object", "properties": {"x": {"type": "string", "pattern": "(?=a)"}}}')
    use = ToolUse((CLOCK, bad), required=True, name=wanted)
    with pytest.raises(InvalidRequest) as refused:
        grammars().compile(use.grammar(HERMES, {}))
    blamed = use.blame(refused.value)
    assert isinstance(blamed, InvalidRequest)
    assert blamed.message.startswith(
        "chat.tools[1].parameters cannot be held to (a pattern cannot be read: look-around"
    )
    assert blamed.message.endswith("is not supported): send a simpler schema")


def test_other_errors_are_nobodys_fault() -> None:
    for error in (InvalidRequest("no such id"), InternalError("cannot be used: at 1(2): failed")):
        assert ToolUse(TOOLS).blame(error) is error


def test_tools_beyond_the_size_of_a_grammar_are_refused() -> None:
    many = Tool("f", "", json.dumps({"type": "object", "title": "x" * MAX_GRAMMAR_BYTES}))
    with pytest.raises(InvalidRequest, match=r"^chat\.tools has \d+ bytes: send at most 65536$"):
        tool_grammar([many], HERMES, {}, required=True, parallel=True)
