"""Sentences that were said before, in nearly the same words, and those that only look so."""

from __future__ import annotations

from collections import Counter

import pytest

from shared.trimming import near_duplicates
from shared.trimming.near_duplicates import (
    MAX_COMPARED_SENTENCES,
    MAX_REMEMBERED,
    Words,
    said_before,
)
from shared.trimming.passage_sentences import PassageSentence, passage_sentences

SAID = "The river Nile flows slowly through the old town of Aswan to the sea."


@pytest.mark.parametrize(
    "again",
    [
        SAID,
        SAID.upper(),
        SAID.replace("slowly ", ""),
        "The river Nile flows slowly through the old town of Aswan.",
    ],
)
def test_a_sentence_in_nearly_the_same_words_was_said_before(again: str) -> None:
    assert said_before(passage_sentences([SAID, again])) == [False, True]


@pytest.mark.parametrize(
    "other",
    [
        "The sea flows slowly through the old town of Aswan to the river Nile.",
        "The river Nile never flows slowly through the old town of Aswan to the sea.",
        "The river Tiber flows slowly through the old town of Aswan to the sea.",
        "In 1974 the river Nile flows slowly through the old town of Aswan to the sea.",
        "Something else altogether stands here.",
    ],
    ids=["order", "negation", "name", "number", "other"],
)
def test_a_sentence_that_says_something_else_was_not(other: str) -> None:
    assert said_before(passage_sentences([SAID, other])) == [False, False]


@pytest.mark.parametrize(("again", "is_said"), [("Yes.", True), ("No.", False)])
def test_a_short_sentence_was_said_where_all_of_its_words_are_the_same(again: str, is_said: bool) -> None:
    assert said_before(passage_sentences(["Yes.", again])) == [False, is_said]


def test_a_sentence_is_compared_with_a_few_that_look_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many that differ by a number alone have nearly all pairs of words in common."""
    compared: list[PassageSentence] = []
    says_all = near_duplicates._says_all

    def counted(earlier: PassageSentence, said: Words, later: PassageSentence, again: Words) -> bool:
        compared.append(later)
        return says_all(earlier, said, later, again)

    monkeypatch.setattr(near_duplicates, "_says_all", counted)
    numbered = [f"The river Nile flows slowly through town {n}." for n in range(3 * MAX_REMEMBERED)]
    assert not any(said_before(passage_sentences(numbered)))
    assert max(Counter(compared).values()) <= MAX_COMPARED_SENTENCES
