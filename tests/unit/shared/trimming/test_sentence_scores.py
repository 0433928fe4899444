"""Sentences in the order in which they are likely to answer a question."""

from __future__ import annotations

import pytest

from shared.trimming.passage_sentences import passage_sentences
from shared.trimming.sentence_scores import sentence_scores

TOWER = "The tower stands in Paris. It was finished in 1889. Gustave Eiffel built the tower for a fair."


@pytest.mark.parametrize(
    ("question", "best"),
    [
        ("In which town does the tower stand?", "The tower stands in Paris."),
        ("When was it finished?", "It was finished in 1889."),
        ("Who built it?", "Gustave Eiffel built the tower for a fair."),
    ],
)
def test_the_sentence_with_the_words_of_the_question_and_what_it_asks_for_is_first(
    question: str, best: str
) -> None:
    sentences = passage_sentences([TOWER, "A lake lies still. Nobody swims in it."])
    scores = sentence_scores(question, sentences)
    assert sentences[scores.index(max(scores))].text == best


def test_of_sentences_that_say_as_much_that_of_the_better_passage_is_first() -> None:
    scores = sentence_scores("why?", passage_sentences(["A lake lies still.", "A lake lies still."]))
    assert scores[0] > scores[1]


def test_a_sentence_beside_one_that_fits_is_before_others() -> None:
    sentences = passage_sentences(
        ["The dam is old. It leaks badly.", "Bread is baked here. Salt is dug there."]
    )
    _, beside, *others = sentence_scores("How old is the dam?", sentences)
    assert beside > max(others)
