"""Markers of an answer that is of use, and what none of them takes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.telemetry import useful_answer
from shared.telemetry.useful_answer import MAX_PATTERN_CHARS, UsefulMarker, UsefulWatch, has_json_value

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES.filter(lambda value: isinstance(value, list | dict)), st.text("abc: ,"))
def test_a_json_value_is_whole_at_its_last_bracket(value: object, before: str) -> None:
    text = before + json.dumps(value)
    assert has_json_value(text)
    assert not has_json_value(text[:-1])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Yes. ", True),
        ("Yes.", False),
        ('He said "no." And', True),
        ("about 3.5 or", False),
        ("...", False),
        ("好。", True),
        ("Really?\n", True),
    ],
)
def test_a_sentence_is_over_where_something_follows(text: str, found: bool) -> None:
    assert UsefulMarker.read("sentence").found(text) is found


def test_the_last_sentence_is_over_with_the_answer() -> None:
    watch = UsefulWatch(UsefulMarker.read("sentence"))
    assert (watch.add("Yes."), watch.end(), watch.end()) == (False, True, False)


@pytest.mark.parametrize("text", ["", "word", "regex:", "regex:(", "regex:" + "x" * (MAX_PATTERN_CHARS + 1)])
def test_what_is_no_marker_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no marker|cannot be read|over 1000 characters"):
        UsefulMarker.read(text)


def test_the_longest_pattern_is_taken() -> None:
    assert UsefulMarker.read("regex:" + "x" * MAX_PATTERN_CHARS).found("x" * MAX_PATTERN_CHARS)


def test_an_endless_answer_is_looked_at_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(useful_answer, "MAX_LOOKED_AT_CHARS", 10)
    watch = UsefulWatch(UsefulMarker.read("regex:end"))
    assert not any(watch.add("123456") for _ in range(2))
    assert not watch.add("end")


@pytest.mark.parametrize(
    ("pieces", "useful"),
    [
        (("<think>", "Well", "</th", "ink>", "\n\n", "Yes"), 5),
        (("Hm.[/THINK]No", "."), 0),
        (("Yes.", " No."), None),
        (("<think>on and on",), None),
    ],
)
def test_an_answer_is_of_use_with_the_first_text_behind_its_thinking(
    pieces: tuple[str, ...], useful: int | None
) -> None:
    watch = UsefulWatch(UsefulMarker.read("thinking"))
    found = [index for index, piece in enumerate(pieces) if watch.add(piece)]
    assert found == ([] if useful is None else [useful])
    assert not watch.end()


@pytest.mark.parametrize(("marker", "found"), [("thinking", [False, False, True]), ("sentence", [False] * 3)])
def test_thinking_that_a_server_tells_apart_is_none_of_the_answer(marker: str, found: list[bool]) -> None:
    watch = UsefulWatch(UsefulMarker.read(marker))
    pieces = (("It is so. ", True), ("So it is. ", True), ("Yes", False))
    assert [watch.add(text, thinking=thinking) for text, thinking in pieces] == found


def test_the_longest_thinking_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(useful_answer, "MAX_LOOKED_AT_CHARS", 10)
    watch = UsefulWatch(UsefulMarker.read("thinking"))
    assert not any(watch.add("so then ") for _ in range(9))
    assert watch.add("</think>Yes")
