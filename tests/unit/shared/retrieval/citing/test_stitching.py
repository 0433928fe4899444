"""Sentences whose words are all there, in two places: how much of each is stitched together."""

from __future__ import annotations

import pytest

from shared.retrieval.citing.evidence import TextFacts, WordWeights
from shared.retrieval.citing.stitching import Stitching

RHINE = "The Rhine flows past Basel and has a length of 1230 km."
ELBE = "The Elbe rises in Bohemia and has a catchment of 148268 square km."
LAKE = "Lake Constance lies between three countries."
DEEPEST = "Its deepest place is at 251 metres."
ALL = (RHINE, ELBE, LAKE, DEEPEST)


def stitched(sentence: str, texts: tuple[str, ...] = ALL, neighbours: tuple[int, ...] = (0, 2)) -> float:
    facts = [TextFacts.of(text) for text in texts]
    stitching = Stitching(facts, neighbours, WordWeights.of(facts))
    return stitching.stitched_share(sentence, TextFacts.of(sentence))


@pytest.mark.parametrize(
    "said",
    [
        RHINE,
        "Past Basel the Rhine flows.",
        "The Elbe has a catchment of 148268 square km, it rises in Bohemia.",
        "Nothing like that stands anywhere.",
        "Rhine",
        "",
    ],
)
def test_what_one_place_says_is_not_stitched_nor_is_what_none_says(said: str) -> None:
    assert stitched(said) == pytest.approx(0.0)


@pytest.mark.parametrize(
    "said",
    [
        "The Rhine flows past Bohemia.",
        "The catchment of the Elbe is 251 metres.",
        "1230 km is the deepest place.",
    ],
)
def test_what_two_places_say_in_part_is_stitched(said: str) -> None:
    assert 0.2 < stitched(said) <= 0.5


def test_two_neighbouring_sentences_may_be_put_together_if_most_of_them_is_said() -> None:
    said = "Lake Constance lies between three countries and its deepest place is at 251 metres."
    assert stitched(said) == pytest.approx(0.0)
    assert stitched(said, neighbours=(0,)) > 0.3
    assert stitched(said, neighbours=()) > 0.3
    assert stitched("Lake Constance is at 251 metres.") > 0.3


def test_a_word_that_begins_alike_is_worth_a_little_less() -> None:
    whole, alike = stitched("The Rhine rises in Bohemia."), stitched("The Rhine rises, Bohemian.")
    assert 0.0 < alike < whole


def test_without_sentences_nothing_is_stitched() -> None:
    assert stitched("The Rhine flows.", texts=(), neighbours=()) == 0.0
