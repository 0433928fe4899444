"""The F1 by which answers are measured, on pairs whose value is easily counted."""

from __future__ import annotations

import pytest

from tests.bench.squad_f1 import squad_f1


@pytest.mark.parametrize(
    ("answer", "marked", "f1"),
    [
        ("308", ["308"], 1.0),
        ("The Eiffel Tower!", ["eiffel  tower"], 1.0),  # case, article, punctuation and spacing
        ("It was the Eiffel Tower.", ["Eiffel Tower"], 2 * 2 / (4 + 2)),
        ("tower tower", ["tower"], 2 * 1 / (2 + 1)),  # a word counts as often as it stands in both
        ("a theory", ["heory"], 0.0),  # articles are words, not beginnings of words
        ("Paris", ["London", "Paris, France"], 2 * 1 / (1 + 2)),  # the best of several
        ("Rome", ["Paris"], 0.0),
        ("", ["Paris"], 0.0),
        ("...", ["the"], 1.0),  # neither has a word
    ],
)
def test_the_f1_is_counted_over_words(answer: str, marked: list[str], f1: float) -> None:
    assert squad_f1(answer, marked) == pytest.approx(f1)
