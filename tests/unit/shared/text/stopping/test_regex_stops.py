"""Patterns in a stream: every split gives the same, and so much is held back and no more."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import InvalidRequest
from shared.text.stopping.regex_stops import (
    MAX_HELD_CHARS,
    MAX_STOP_REGEX_CHARS,
    MAX_STOP_REGEXES,
    RegexStopMatcher,
    check_stop_regexes,
)

NEXT_QUESTION = (r"\n+\s*(?:Question|Q)\s*\d*:",)


def pushed(matcher: RegexStopMatcher, *pieces: str) -> tuple[str, str | None]:
    shown = ""
    for piece in pieces:
        emit, matched = matcher.push(piece)
        shown += emit
        if matched is not None:
            return shown, matched
    emit, matched = matcher.finish()
    return shown + emit, matched


def test_the_text_is_cut_before_the_match_whose_text_is_told() -> None:
    text = "Sixteen.\n\nQuestion 2: why?"
    assert pushed(RegexStopMatcher(NEXT_QUESTION), text) == ("Sixteen.", "\n\nQuestion 2:")


@given(st.text("ab\nQ1: ", max_size=24), st.lists(st.integers(0, 24), max_size=5))
def test_every_split_of_a_text_gives_the_same(text: str, cuts: list[int]) -> None:
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[start:end] for start, end in pairwise(edges)]
    patterns = (*NEXT_QUESTION, "b[^b]+b", "a{3}")
    assert pushed(RegexStopMatcher(patterns), *pieces) == pushed(RegexStopMatcher(patterns), text)


def test_text_in_which_nothing_has_begun_is_shown_at_once() -> None:
    matcher = RegexStopMatcher(NEXT_QUESTION)
    assert matcher.push("One line.\nAnother") == ("One line.\nAnother", None)
    assert matcher.push("\n Q") == ("", None)
    assert matcher.push("uite") == ("\n Quite", None)


def test_what_was_held_back_comes_at_the_end() -> None:
    assert pushed(RegexStopMatcher(("ab*c",)), "xabb") == ("xabb", None)


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_no_more_is_held_back_than_the_limit_and_a_longer_match_ends_the_text_all_the_same(size: int) -> None:
    text = "x<" + "y" * 3 * MAX_HELD_CHARS + ">z"
    matcher = RegexStopMatcher(("<.*>",))
    shown = ""
    for at in range(0, len(text), size):
        emit, matched = matcher.push(text[at : at + size])
        shown += emit
        assert len(text[: at + size]) - len(shown) <= MAX_HELD_CHARS or matched
    end = text.index(">") + 1
    assert shown == text[: end - MAX_HELD_CHARS]
    assert matched == text[end - MAX_HELD_CHARS : end]


def test_a_match_of_as_many_characters_as_are_held_back_is_cut_whole() -> None:
    text = "x<" + "y" * (MAX_HELD_CHARS - 2) + ">"
    assert pushed(RegexStopMatcher(("<.*>",)), *text) == ("x", text[1:])


def test_text_after_a_match_is_dropped() -> None:
    matcher = RegexStopMatcher(("x+",))
    assert matcher.push("axx") == ("a", "x")
    assert matcher.push("b") == ("", "x")
    assert matcher.finish() == ("", "x")


@pytest.mark.parametrize(
    ("patterns", "sentence"),
    [
        (("a",) * (MAX_STOP_REGEXES + 1), "has 9 patterns: send at most 8"),
        (("a", ""), r"stop_regex\[1\] has 0 characters"),
        (("b" * (MAX_STOP_REGEX_CHARS + 1),), r"stop_regex\[0\] has 257 characters"),
        (("a", "b("), r"stop_regex\[1\] is not complete: a group lacks"),
        (("a{70}", "b{70}"), "stop_regex has too many characters"),
    ],
)
def test_patterns_over_a_limit_are_refused_by_name(patterns: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        check_stop_regexes(patterns)


def test_patterns_at_the_limits_are_taken() -> None:
    check_stop_regexes(("[" + "a" * (MAX_STOP_REGEX_CHARS - 2) + "]",) * MAX_STOP_REGEXES)
