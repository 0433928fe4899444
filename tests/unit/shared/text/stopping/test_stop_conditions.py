"""Stop strings and patterns together: the one that is sure first ends the text, however it is split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.text.stopping.stop_conditions import TextStops, text_stops


def pushed(stops: TextStops, *pieces: str) -> tuple[str, str | None]:
    shown = ""
    for piece in pieces:
        emit, matched = stops.push(piece)
        shown += emit
        if matched is not None:
            return shown, matched
    emit, matched = stops.finish()
    return shown + emit, matched


@pytest.mark.parametrize(
    ("text", "strings", "patterns", "found"),
    [
        ("one two three", ("two",), ("th+",), ("one ", "two")),
        ("one two three", ("three",), ("t.o",), ("one ", "two")),
        ("one two three", ("wo",), ("t.o",), ("one ", "two")),
        ("one two three", ("two",), ("t.o",), ("one ", "two")),
        ("one two three", ("e two thx", "ne t"), ("wo",), ("o", "ne t")),
        ("one two three", ("e two thx",), ("four",), ("one two three", None)),
        ("one two", ("two three", "wo"), ("[.]",), ("one t", "wo")),
        ("one two", (), ("t",), ("one ", "t")),
        ("one two", ("t",), (), ("one ", "t")),
    ],
)
def test_the_first_that_is_sure_ends_the_text(
    text: str, strings: tuple[str, ...], patterns: tuple[str, ...], found: tuple[str, str | None]
) -> None:
    assert pushed(text_stops(strings, patterns), text) == found
    assert pushed(text_stops(strings, patterns), *text) == found


@given(
    st.text("ab", max_size=16),
    st.lists(st.integers(0, 16), max_size=4),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=2).map(tuple),
    st.lists(st.sampled_from(["ab+a", "b{3}", "a[^a]a"]), min_size=1, max_size=2).map(tuple),
)
def test_every_split_gives_the_same_and_nothing_is_lost(
    text: str, cuts: list[int], strings: tuple[str, ...], patterns: tuple[str, ...]
) -> None:
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[start:end] for start, end in pairwise(edges)]
    shown, matched = pushed(text_stops(strings, patterns), *pieces)
    assert (shown, matched) == pushed(text_stops(strings, patterns), text)
    assert text.startswith(shown + (matched or ""))
    assert matched is not None or shown == text
