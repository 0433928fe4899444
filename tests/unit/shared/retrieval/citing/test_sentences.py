"""Texts as sentences: where they end, where they do not, and that places are exact."""

from __future__ import annotations

import pytest

from shared.retrieval.citing.sentences import sentence_spans


def sentences(text: str, most: int = 99) -> list[str]:
    return [span.of(text) for span in sentence_spans(text, most)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It gave up 308 points. Is it 3.5? Yes!", ["It gave up 308 points.", "Is it 3.5?", "Yes!"]),
        ("Dr. Smith met J. R. Low, e.g. here. So.", ["Dr. Smith met J. R. Low, e.g. here.", "So."]),
        ("It is so. [1] Next [2].", ["It is so. [1]", "Next [2]."]),
        ('He said "no." Then he left', ['He said "no."', "Then he left"]),
        ("1. First\n2. Second: it\n\n- a b", ["1. First", "2. Second: it", "- a b"]),
        ("No. Go to it. Äh … ok", ["No.", "Go to it.", "Äh … ok"]),
        ("\u8fd9\u662f\u3002\u597d\uff01\u5b8c", ["\u8fd9\u662f\u3002", "\u597d\uff01", "\u5b8c"]),
        ("", []),
        (" \n [1] ... !\n", []),
    ],
)
def test_sentences_end_where_they_end(text: str, found: list[str]) -> None:
    assert sentences(text) == found


def test_as_many_as_are_wanted() -> None:
    assert sentences("One is. Two are. So.", 2) == ["One is.", "Two are."]


def test_a_long_text_without_any_end_is_one_sentence() -> None:
    text = "word " * 20_000
    assert sentences(text) == [text.strip()]
