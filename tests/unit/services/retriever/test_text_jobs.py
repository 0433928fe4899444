"""Texts that are scored part by part: all of them, or none when there is no time or nobody who waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import pytest

from services.retriever.text_jobs import TextJob, TextWork, check_texts
from shared.bus import Delivery
from shared.deadline import Deadline
from shared.errors import DeadlineExpired, InvalidRequest, NotFound, PenstockError, TooLarge
from shared.messages import (
    MAX_CITED_ANSWER_CHARS,
    MAX_CITED_PASSAGE_BYTES,
    MAX_CITED_PASSAGES,
    MAX_RERANK_TEXTS,
    AnswerCited,
    CiteAnswer,
    CitedSentence,
    Envelope,
    RerankTexts,
    TextScores,
)
from shared.retrieval.encoders.embedder import Embedder
from shared.retrieval.encoders.rerank import ScoredTexts

NO_EMBEDDER = cast(Embedder, None)
NUMBERS = RerankTexts("?", tuple(str(number) for number in range(MAX_RERANK_TEXTS)), "acme")


class NumberReranker:
    """A text's score is the number that it is. `then` is called after each part."""

    name = "number"

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.parts: list[int] = []
        self.owners: set[str] = set()
        self._then = then

    def score_texts(self, question: str, texts: Sequence[str], owner: str = "") -> ScoredTexts:
        self.parts.append(len(texts))
        self.owners.add(owner)
        self._then()
        return ScoredTexts([float(text) for text in texts], [len(question)] * len(texts), [True] * len(texts))

    def weight(self, question: str) -> float | None:  # noqa: ARG002
        raise AssertionError("nobody searched for these")


def job(seconds: float = 60.0) -> TextJob:
    return TextJob(Delivery(Envelope("r"), NUMBERS), NUMBERS, Deadline.after(seconds))


def test_columns_have_a_row_for_each_text() -> None:
    reranker = NumberReranker()
    scores = TextWork(NO_EMBEDDER, reranker).run(job())
    assert isinstance(scores, TextScores)
    assert scores.scores == tuple(map(float, range(MAX_RERANK_TEXTS)))
    assert scores.tokens == (1,) * MAX_RERANK_TEXTS
    assert scores.truncated == (True,) * MAX_RERANK_TEXTS
    assert reranker.parts == [8, 8, 8, 8]
    assert reranker.owners == {"tenant acme"}


def test_what_nobody_waits_for_any_more_is_given_up_after_the_part_in_hand() -> None:
    dropped = job()

    def drop() -> None:
        dropped.dropped = True

    reranker = NumberReranker(then=drop)
    with pytest.raises(DeadlineExpired):
        TextWork(NO_EMBEDDER, reranker).run(dropped)
    assert reranker.parts == [8]


def test_no_part_is_begun_after_the_deadline() -> None:
    reranker = NumberReranker()
    with pytest.raises(DeadlineExpired, match="reranking the texts"):
        TextWork(NO_EMBEDDER, reranker).run(job(-1.0))
    assert reranker.parts == []


def test_without_a_reranker_nothing_is_scored() -> None:
    with pytest.raises(NotFound, match="no reranker"):
        TextWork(NO_EMBEDDER, None).run(job())


class NeverAsked:
    """An embedder for texts that need no vector: those with the very words."""

    def embed_passages(self, texts: Sequence[str]) -> None:
        raise AssertionError(f"{texts} were to be embedded")


def cite_job(seconds: float = 60.0) -> TextJob:
    message = CiteAnswer("?", "Water flows downhill.", ("It rains. Water flows downhill.",))
    return TextJob(Delivery(Envelope("r.cite"), message), message, Deadline.after(seconds))


def test_an_answer_is_cited_without_a_reranker_and_in_time_alone() -> None:
    work = TextWork(cast(Embedder, NeverAsked()), None)
    answer = work.run(cite_job())
    assert isinstance(answer, AnswerCited)
    (cited,) = answer.sentences
    assert cited == CitedSentence(0, 21, 1, 10, 31, cited.support)
    with pytest.raises(DeadlineExpired, match="citing the texts"):
        work.run(cite_job(-1.0))


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (CiteAnswer("?", "a", ()), InvalidRequest),
        (CiteAnswer("?", "a", ("b",) * (MAX_CITED_PASSAGES + 1)), InvalidRequest),
        (CiteAnswer("?", "a" * (MAX_CITED_ANSWER_CHARS + 1), ("b",)), TooLarge),
        (CiteAnswer("?" * (MAX_CITED_ANSWER_CHARS + 1), "a", ("b",)), TooLarge),
        (CiteAnswer("?", "a", ("b" * MAX_CITED_PASSAGE_BYTES, "b")), TooLarge),
    ],
)
def test_what_no_gateway_sends_to_be_cited_is_refused(
    message: CiteAnswer, error: type[PenstockError]
) -> None:
    with pytest.raises(error):
        check_texts(message)


def test_what_is_at_the_limits_is_cited() -> None:
    texts = ("b" * (MAX_CITED_PASSAGE_BYTES - MAX_CITED_PASSAGES + 1), *("b" * (MAX_CITED_PASSAGES - 1)))
    check_texts(CiteAnswer("?" * MAX_CITED_ANSWER_CHARS, "a" * MAX_CITED_ANSWER_CHARS, texts))
