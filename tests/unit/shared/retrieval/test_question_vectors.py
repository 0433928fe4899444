"""The vectors of questions that are asked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from shared.retrieval.embedder import MAX_TOKENS, EmbeddedQuestions, Embedder
from shared.retrieval.question_vectors import MAX_KEPT_CHARS, QuestionVectors


class CountingEmbedder:
    """A question's vector is its length."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def embed_questions(self, questions: Sequence[str]) -> EmbeddedQuestions:
        self.asked.append(list(questions))
        vectors = np.array([[len(question)] for question in questions], dtype=np.float32)
        cut = [len(question) > 3 for question in questions]
        return EmbeddedQuestions(vectors, cut, [1 / len(question) for question in questions])


@pytest.fixture
def embedder() -> CountingEmbedder:
    return CountingEmbedder()


def made(embedder: CountingEmbedder, most: int = 8) -> QuestionVectors:
    return QuestionVectors(cast(Embedder, embedder), most=most)


def test_a_question_is_embedded_once_and_answered_in_its_place(embedder: CountingEmbedder) -> None:
    vectors = made(embedder)
    vectors.embed(["a", "bb"])
    found = vectors.embed(["cccc", "a", "cccc", "bb"])
    assert embedder.asked == [["a", "bb"], ["cccc"]]
    assert found.vectors[:, 0].tolist() == [4, 1, 4, 2]
    assert found.truncated == [True, False, True, False]
    assert found.known == [0.25, 1.0, 0.25, 0.5]


def test_the_questions_asked_least_lately_go(embedder: CountingEmbedder) -> None:
    vectors = made(embedder, most=2)
    for question in ("a", "bb", "a", "ccc", "a", "bb"):
        vectors.embed([question])
    assert embedder.asked == [["a"], ["bb"], ["ccc"], ["bb"]]


@pytest.mark.parametrize(("chars", "times"), [(MAX_KEPT_CHARS, 1), (MAX_KEPT_CHARS + 1, 2)])
def test_long_questions_are_not_kept(embedder: CountingEmbedder, chars: int, times: int) -> None:
    vectors = made(embedder)
    for _ in range(2):
        vectors.embed(["x" * chars])
    assert len(embedder.asked) == times


@pytest.fixture(scope="module")
def minilm() -> Embedder:
    return Embedder.load()


@pytest.mark.parametrize(
    ("question", "least", "most"),
    [
        ("Which service does a request come in through?", 0.9, 1.0),
        ("Was ist die Hauptstadt der Schweiz?", 0.05, 0.6),
        ("Какой город является столицей?", 0.0, 0.1),
        ("门在哪里", 0.0, 0.0),
        ("42 + 7 = ?", 0.0, 0.0),
    ],
)
def test_the_english_embedder_knows_how_much_of_a_question_it_knows(
    minilm: Embedder, question: str, least: float, most: float
) -> None:
    (known,) = minilm.embed_questions([question]).known
    assert least <= known <= most


def test_a_question_that_does_not_fit_says_so(minilm: Embedder) -> None:
    short, long = "word " * (MAX_TOKENS - 2), "word " * (MAX_TOKENS - 1)
    assert minilm.embed_questions([short, long]).truncated == [False, True]
