"""What is left of a passage, and where in all of it a part of that stands."""

from __future__ import annotations

import pytest

from shared.messages import Spans
from shared.trimming.kept_text import (
    NOTHING,
    WHOLE,
    are_spans_of,
    joined_spans,
    kept_text,
    place_in_whole,
)

TEXT = "One.  Two. Three. Four."
ONE, TWO, THREE, FOUR = (0, 4), (6, 10), (11, 17), (18, 23)


def test_neighbours_are_one_part_with_the_space_between_them() -> None:
    spans = joined_spans(TEXT, [ONE, TWO, FOUR])
    assert spans == (0, 10, 18, 23)
    assert kept_text(TEXT, spans) == "One.  Two. Four."


def test_all_parts_are_the_whole_text() -> None:
    assert joined_spans(TEXT, [ONE, TWO, THREE, FOUR]) == WHOLE
    assert kept_text(f" {TEXT}\n", WHOLE) == f" {TEXT}\n"


def test_nothing_is_no_text() -> None:
    assert kept_text(TEXT, NOTHING) == ""


@pytest.mark.parametrize("word", ["One.", "Four.", "Thr", "ee.", "T"])
def test_a_place_in_what_is_left_is_the_same_words_of_the_whole(word: str) -> None:
    spans = joined_spans(TEXT, [ONE, THREE, FOUR])
    start = kept_text(TEXT, spans).index(word)
    begin, end = place_in_whole(spans, start, start + len(word))
    assert TEXT[begin:end] == word


def test_a_place_over_two_parts_holds_what_was_left_out_between_them() -> None:
    spans = joined_spans(TEXT, [ONE, FOUR])
    assert place_in_whole(spans, 0, len(kept_text(TEXT, spans))) == (0, len(TEXT))
    assert place_in_whole(WHOLE, 3, 7) == (3, 7)


@pytest.mark.parametrize(
    ("spans", "fits"),
    [
        (WHOLE, True),
        (NOTHING, True),
        ((0, 4, 6, 23), True),
        ((0, 4, 6, 24), False),
        ((4, 0), False),
        ((0, 4, 3, 6), False),
        ((-1, 4), False),
        ((0, 4, 6), False),
    ],
)
def test_parts_are_those_of_a_text_only_in_its_order_and_within_it(spans: Spans, fits: bool) -> None:
    assert are_spans_of(spans, TEXT) == fits
