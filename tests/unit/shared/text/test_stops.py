"""Stop strings: the earliest one wins, the cut is exact, nothing is held back without need."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import InvalidRequest
from shared.text.stops import MAX_STOP_CHARS, MAX_STOPS, StopMatcher

LETTERS = st.text("ab", max_size=24)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4).map(tuple)
CUTS = st.lists(st.integers(0, 24), max_size=6)


def search(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """All at once: the match that starts first, the shorter of two that start together."""
    places = [(text.index(stop), len(stop), stop) for stop in stops if stop in text]
    return (text[: min(places)[0]], min(places)[2]) if places else (text, None)


def stream(text: str, stops: tuple[str, ...], cuts: list[int]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    shown = ""
    for start, end in pairwise(edges):
        emit, matched = matcher.push(text[start:end])
        shown += emit
        if matched is not None:
            return shown, matched
    emit, matched = matcher.finish()
    return shown + emit, matched


@given(LETTERS, STOPS, CUTS)
def test_streaming_finds_what_a_search_of_the_whole_text_finds(
    text: str, stops: tuple[str, ...], cuts: list[int]
) -> None:
    assert stream(text, stops, cuts) == search(text, stops)


@given(LETTERS, STOPS)
def test_only_the_longest_suffix_that_may_become_a_stop_is_held_back(
    text: str, stops: tuple[str, ...]
) -> None:
    text, _ = search(text, stops)
    matcher = StopMatcher(stops)
    shown = ""
    for end, character in enumerate(text, start=1):
        shown += matcher.push(character)[0]
        seen = text[:end]
        suffixes = (seen[start:] for start in range(end + 1))
        held = next(suffix for suffix in suffixes if not suffix or any(s.startswith(suffix) for s in stops))
        assert shown == seen.removesuffix(held)


def test_a_stop_across_pushes_cuts_exactly() -> None:
    matcher = StopMatcher(("\nUser:",))
    assert matcher.push("Answer.\nUs") == ("Answer.", None)
    assert matcher.push("er: more") == ("", "\nUser:")


def test_a_match_waits_for_a_longer_stop_that_began_before_it() -> None:
    matcher = StopMatcher(("c", "bcd"))
    assert matcher.push("abc") == ("a", None)
    assert matcher.push("d") == ("", "bcd")


def test_the_waiting_match_counts_when_the_text_ends() -> None:
    matcher = StopMatcher(("c", "bcd"))
    assert matcher.push("abc") == ("a", None)
    assert matcher.finish() == ("b", "c")


def test_text_after_a_match_is_dropped() -> None:
    matcher = StopMatcher(("x",))
    assert matcher.push("ax") == ("a", "x")
    assert matcher.push("more") == ("", "x")
    assert matcher.finish() == ("", "x")


def test_without_stops_everything_passes_at_once() -> None:
    matcher = StopMatcher(())
    assert matcher.push("text") == ("text", None)
    assert matcher.finish() == ("", None)


@pytest.mark.parametrize("stops", [("",), ("a" * (MAX_STOP_CHARS + 1),), ("a",) * (MAX_STOPS + 1)])
def test_stops_over_the_limits_are_refused(stops: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest):
        StopMatcher(stops)


def test_stops_at_the_limits_are_taken() -> None:
    assert StopMatcher(("a" * MAX_STOP_CHARS,) * MAX_STOPS).push("b") == ("b", None)
