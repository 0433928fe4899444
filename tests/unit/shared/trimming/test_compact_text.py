"""JSON and text in fewer characters: what they say stays."""

from __future__ import annotations

import json

import pytest

from shared.trimming.compact_text import compact_json, compact_space


@pytest.mark.parametrize(
    "text",
    ['{ "a" : 1.0e5 ,\n "b": "x  \\" y" }', "[ 1 , [ ] , { } ]", '\n{"a": 123456789012345678901234567890}\n'],
)
def test_json_says_the_same_without_the_space_between_its_parts(text: str) -> None:
    short = compact_json(text)
    assert json.loads(short) == json.loads(text)
    assert len(short) < len(text)
    assert compact_json(short) == short


def test_numbers_and_texts_of_json_stay_letter_by_letter() -> None:
    assert compact_json('{ "a" : 1.0e5, "b": "x  y \\u00e9" }') == '{"a":1.0e5,"b":"x  y \\u00e9"}'


@pytest.mark.parametrize("text", ["{ not json }", "12 ", '" a "', "", "[" * 100_000, "{ [ ] "])
def test_what_is_no_object_and_no_array_of_json_stays(text: str) -> None:
    assert compact_json(text) == text


def test_space_at_the_ends_of_lines_and_empty_lines_go_and_indentation_stays() -> None:
    assert (
        compact_space("\n\ndef f():  \n    return  1\n\n\n\n\nend \t\n\n") == "def f():\n    return  1\n\nend"
    )
