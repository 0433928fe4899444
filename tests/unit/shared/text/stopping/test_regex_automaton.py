"""The automaton of patterns finds what `re` finds, at the first character at which it can be known."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import InvalidRequest
from shared.text.stopping import regex_automaton
from shared.text.stopping.regex_automaton import MAX_REGEX_PLACES, RegexAutomaton
from shared.text.stopping.regex_syntax import parse_regex


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    counts = st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda both: f"(?:{both[0]}|{both[1]})"),
        st.tuples(inner, counts).map(lambda both: f"(?:{both[0]}){both[1]}"),
    )


REGEXES = st.recursive(st.sampled_from(["a", "b", ".", "[^a]"]), _grown, max_leaves=6).filter(
    lambda pattern: re.fullmatch(pattern, "") is None
)


def first_match(automaton: RegexAutomaton, text: str) -> tuple[int, int] | None:
    places = automaton.begin()
    for at, char in enumerate(text):
        places = automaton.step(places, char)
        if places.ends:
            return automaton.match_start(text, 0, at + 1), at + 1
    return None


def search(patterns: list[str], text: str) -> tuple[int, int] | None:
    """The first end of any match, and the first start of those that end there."""
    for end in range(1, len(text) + 1):
        for start in range(end):
            if any(re.compile(each).fullmatch(text, start, end) for each in patterns):
                return start, end
    return None


@given(st.lists(REGEXES, min_size=1, max_size=3), st.text("abc", max_size=9))
def test_the_first_end_and_its_first_start_are_those_of_a_search(patterns: list[str], text: str) -> None:
    assert first_match(RegexAutomaton(list(map(parse_regex, patterns))), text) == search(patterns, text)


def test_patterns_spell_out_so_much_together_and_no_more() -> None:
    half = parse_regex(f"a{{{MAX_REGEX_PLACES // 2}}}")
    assert first_match(RegexAutomaton([half, half]), "a" * MAX_REGEX_PLACES) == (0, MAX_REGEX_PLACES // 2)
    with pytest.raises(InvalidRequest, match=f"at most {MAX_REGEX_PLACES} together"):
        RegexAutomaton([half, half, parse_regex("a")])


@pytest.mark.parametrize("pattern", ["(?:(?:a{999}){999}){999999999}", "(?:a{99,}){99}"])
def test_what_counts_without_end_is_refused_before_it_is_written_out(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match="too many characters"):
        RegexAutomaton([parse_regex(pattern)])


@pytest.mark.parametrize("pattern", ["a*", "", "a|", "(){999999999}", "(?:a?){9}"])
def test_a_pattern_of_the_empty_text_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match="the empty text"):
        RegexAutomaton([parse_regex(pattern)])


def test_steps_that_are_forgotten_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex_automaton, "MAX_KEPT_STEPS", 3)
    automaton = RegexAutomaton([parse_regex("[ab]*a[ab]{4}c")])
    text = "abbabaabbbabababbaaabbbbababaabcc"
    assert first_match(automaton, text) == first_match(automaton, text) == search(["[ab]*a[ab]{4}c"], text)
    assert sum(len(each.steps) for each in automaton._sets.values()) <= 3
