"""Patterns that end an answer: what is read as in Python's `re`, and what is refused with a place."""

from __future__ import annotations

import re

import pytest

from shared.errors import InvalidRequest
from shared.text.stopping.char_set import CharSet
from shared.text.stopping.regex_automaton import RegexAutomaton
from shared.text.stopping.regex_syntax import MAX_REGEX_DEPTH, parse_regex

CHARACTERS = "aAbBzZ09_ \n\t.-]^{}|\\éÉß京٣\u017f\u212a\u00a0"
PATTERNS = [
    *(".", "(?s).", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"[\w-]", r"[^\s\d]", "[]a]", "[^]a]", "[a-c]"),
    *("[-a]", "[a-]", r"[\]]", r"\x41", "\\u00e9", r"\U00004eac", r"\.", r"\-", r"\n", r"\0", "{", "}", "]"),
    *("(?i)a", "(?i)[a-b]", "(?i)[^a-b]", "(?i:A)", "(?P<x>a|b)", "(?:a)", "(?is)B", "{}", "a{1}", "[.|{]"),
]


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text matches, and nothing shorter from its beginning on ends before."""
    automaton = RegexAutomaton([parse_regex(pattern)])
    places = automaton.begin()
    for char in text:
        places = automaton.step(places, char)
    return places.ends and automaton.match_start(text, 0, len(text)) == 0


@pytest.mark.parametrize("pattern", PATTERNS)
def test_one_character_is_read_as_re_reads_it(pattern: str) -> None:
    if pattern == "{}":
        assert matches(pattern, "{}")
        return
    found = [char for char in CHARACTERS if matches(pattern, char)]
    assert found == [char for char in CHARACTERS if re.fullmatch(pattern, char)]


WRONG = {
    "a)b": "character 2",
    "(a": "a group lacks its )",
    "[a": "a set lacks its ]",
    "a\\": "backslash",
    "*a": "character 1",
    "a|+": "character 3",
    "a**": "counted already",
    "a++": "counted already",
    "a{2}{3}": "counted already",
    "a{3,2}": "counts to less",
    "^a": "an anchor",
    "a$": "an anchor",
    r"\ba": "'b' at character 2",
    r"(a)\1": "'1' at character 5",
    "(?=a)": "not supported",
    "(?!a)b": "not supported",
    "(?<=a)b": "not supported",
    "a(?i)b": "not supported",
    "[b-a]": "ends a range",
    r"[a-\d]": "ends a range",
    r"\x4": "2 hexadecimal digits",
    r"\U00110000": "8 hexadecimal digits",
}


@pytest.mark.parametrize("pattern", WRONG)
def test_what_is_wrong_is_said_with_its_place(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(WRONG[pattern])):
        parse_regex(pattern)


def test_groups_may_be_nested_so_deep_and_no_deeper() -> None:
    assert matches("(" * MAX_REGEX_DEPTH + "a" + ")" * MAX_REGEX_DEPTH, "a")
    with pytest.raises(InvalidRequest, match="nested deeper"):
        parse_regex("(" * (MAX_REGEX_DEPTH + 1) + "a" + ")" * (MAX_REGEX_DEPTH + 1))


def test_case_is_ignored_where_the_pattern_says_so_alone() -> None:
    assert matches("(?i:a)b", "Ab")
    assert not matches("(?i:a)b", "AB")
    assert CharSet(((97, 97),), ignores_case=True).has("A")
    assert not CharSet(((97, 97),), negated=True, ignores_case=True).has("A")
