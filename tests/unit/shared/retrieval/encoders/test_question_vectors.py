"""The vectors of questions that are asked again, or by two at a time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shared.retrieval.encoders.embedder import MAX_TOKENS, EmbeddedQuestions, Embedder
from shared.retrieval.encoders.question_vectors import KEPT_VECTOR_BYTES, QuestionVectors
from tests.support import metric

TIMEOUT_S = 60


class CountingEmbedder:
    """A question's vector is its length. "held" is made when "free" has been, and "broken" breaks then."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.began = threading.Event()
        self.go = threading.Event()

    def embed_questions(self, questions: Sequence[str]) -> EmbeddedQuestions:
        self.asked.append(list(questions))
        if "free" in questions:
            self.go.set()
        if any("held" in question for question in questions):
            self.began.set()
            assert self.go.wait(TIMEOUT_S)
        if any("broken" in question for question in questions):
            raise RuntimeError("the encoder is broken")
        vectors = np.array([[len(question)] for question in questions], dtype=np.float32)
        cut = [len(question) > 3 for question in questions]
        return EmbeddedQuestions(vectors, cut, [1 / len(question) for question in questions])


def ask(vectors: QuestionVectors, questions: Sequence[str], tenant: str = "") -> EmbeddedQuestions:
    return vectors.embed_questions(questions, [tenant] * len(questions))


@pytest.fixture
def embedder() -> CountingEmbedder:
    return CountingEmbedder()


def test_a_question_is_embedded_once_and_answered_in_its_place(embedder: CountingEmbedder) -> None:
    vectors = QuestionVectors(embedder)
    ask(vectors, ["a", "bb"])
    found = ask(vectors, ["cccc", "a", "cccc", "bb"])
    assert embedder.asked == [["a", "bb"], ["cccc"]]
    assert found.vectors[:, 0].tolist() == [4, 1, 4, 2]
    assert found.truncated == [True, False, True, False]
    assert found.known == [0.25, 1.0, 0.25, 0.5]


@pytest.mark.parametrize("spare_bytes", [0, KEPT_VECTOR_BYTES - 1])
def test_the_questions_asked_least_lately_go(embedder: CountingEmbedder, spare_bytes: int) -> None:
    vectors = QuestionVectors(embedder, 2 * KEPT_VECTOR_BYTES + spare_bytes)
    for question in ("a", "bb", "a", "ccc", "a", "bb"):
        ask(vectors, [question])
    assert embedder.asked == [["a"], ["bb"], ["ccc"], ["bb"]]


def test_without_room_none_is_kept(embedder: CountingEmbedder) -> None:
    vectors = QuestionVectors(embedder, KEPT_VECTOR_BYTES - 1)
    for _ in range(2):
        assert ask(vectors, ["aa"]).vectors.tolist() == [[2.0]]
    assert embedder.asked == [["aa"], ["aa"]]


def test_a_long_question_takes_no_more_room_than_a_short_one(embedder: CountingEmbedder) -> None:
    vectors = QuestionVectors(embedder, 2 * KEPT_VECTOR_BYTES)
    for question in ("a", "x" * 10**6, "a", "x" * 10**6):
        ask(vectors, [question])
    assert len(embedder.asked) == 2


def test_vectors_that_are_kept_are_counted(embedder: CountingEmbedder) -> None:
    def counts() -> list[float]:
        name = "penstock_question_vectors_total"
        return [metric.value(name, result=result) for result in ("computed", "kept")]

    vectors, before = QuestionVectors(embedder), counts()
    ask(vectors, ["a", "bb"])
    ask(vectors, ["a", "bb", "ccc"])
    assert [after - was for after, was in zip(counts(), before, strict=True)] == [3, 2]


@pytest.mark.parametrize("fate", ["", " broken"])
def test_who_asks_for_what_another_thread_is_making_waits_for_it_and_makes_it_where_that_fails(
    embedder: CountingEmbedder, fate: str
) -> None:
    vectors = QuestionVectors(embedder, others_wait_s=TIMEOUT_S)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, vectors, ["held" + fate, "aa"])
        assert embedder.began.wait(TIMEOUT_S)
        found = ask(vectors, ["aa", "free"])
        assert isinstance(first.exception(TIMEOUT_S), RuntimeError) == bool(fate)
    assert found.vectors[:, 0].tolist() == [2, 4]
    assert embedder.asked == [["held" + fate, "aa"], ["free"], *([["aa"]] if fate else [])]


def test_who_has_waited_long_enough_for_another_thread_makes_it_itself(embedder: CountingEmbedder) -> None:
    vectors = QuestionVectors(embedder, others_wait_s=0.0)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, vectors, ["held", "aa"])
        assert embedder.began.wait(TIMEOUT_S)
        assert ask(vectors, ["aa"]).vectors.tolist() == [[2]]
        embedder.go.set()
        assert first.result(TIMEOUT_S).vectors[:, 0].tolist() == [4, 2]


def test_a_question_whose_embedding_failed_is_embedded_when_it_is_asked_again(
    embedder: CountingEmbedder,
) -> None:
    vectors = QuestionVectors(embedder)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            ask(vectors, ["broken"])
    assert embedder.asked == [["broken"], ["broken"]]


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


def test_a_tenant_that_asks_many_questions_pushes_out_none_of_another_s_share(
    embedder: CountingEmbedder,
) -> None:
    vectors = QuestionVectors(embedder, 4 * KEPT_VECTOR_BYTES)
    ask(vectors, ["a", "bb"], "quiet")
    for number in range(100):
        ask(vectors, [f"question {number}"], "loud")
    embedder.asked.clear()
    ask(vectors, ["a", "bb"], "quiet")
    assert embedder.asked == []


def test_what_another_tenant_has_asked_is_embedded_anew(embedder: CountingEmbedder) -> None:
    vectors = QuestionVectors(embedder)
    found = vectors.embed_questions(["a", "a"], ["acme", "rival"])
    ask(vectors, ["a"], "third")
    assert embedder.asked == [["a", "a"], ["a"]]
    assert found.vectors[:, 0].tolist() == [1, 1]
