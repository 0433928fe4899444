"""What a search has found, in the order of a reranker and within the question's time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from services.retriever.passage_ranker import PassageRanker, Unranked
from services.retriever.question import SearchAsk
from services.retriever.served_corpus import ServedCorpus
from shared.deadline import Deadline
from shared.errors import DeadlineExpired
from shared.messages import Retrieve, Retrieved, ScoredPassage
from shared.retrieval.encoders.rerank import BATCH_PASSAGES, ScoredTexts


class LastBest:
    """A reranker that finds the later text better. `then` is called after each batch."""

    name = "last-best"

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.read: list[str] = []
        self.owners: set[str] = set()
        self._then = then

    def weight(self, question: str) -> float | None:  # noqa: ARG002
        return None

    def score_texts(self, question: str, texts: Sequence[str], owner: str = "") -> ScoredTexts:  # noqa: ARG002
        self.owners.add(owner)
        scores = [float(len(self.read) + place) for place in range(len(texts))]
        self.read += texts
        self._then()
        return ScoredTexts(scores, [1] * len(texts), [False] * len(texts))


def found(count: int, read: int) -> Unranked:
    passages = tuple(ScoredPassage("file", str(number), 1.0) for number in range(count))
    texts = tuple(f"heading\n{number}" for number in range(read))
    return Unranked(Retrieved(passages, "", 1, 1, warning="cut", corpus="law"), texts, (1.0,) * read)


def ask(seconds: float = 60.0, k: int = 8, *, may_degrade: bool = True) -> SearchAsk:
    return SearchAsk(Retrieve("?", k, may_degrade), Deadline.after(seconds), cast(ServedCorpus, None))


def texts_of(answer: Retrieved | DeadlineExpired) -> list[str]:
    assert isinstance(answer, Retrieved)
    return [passage.text for passage in answer.passages]


def test_the_reranker_reads_what_was_indexed_and_orders_the_passages() -> None:
    reranker = LastBest()
    answer = PassageRanker(reranker).rank_passages(ask(k=2), found(3, 3))
    assert texts_of(answer) == ["2", "1"]
    assert reranker.read == ["heading\n0", "heading\n1", "heading\n2"]
    assert reranker.owners == {"corpus law"}
    assert isinstance(answer, Retrieved)
    assert (answer.degraded, answer.warning) == ("", "cut")


def test_beyond_those_that_are_reranked_passages_stay_as_they_were_found() -> None:
    answer = PassageRanker(LastBest()).rank_passages(ask(), found(5, 3))
    assert texts_of(answer) == ["2", "1", "0", "3", "4"]


def test_who_stands_higher_has_the_higher_score() -> None:
    passages = tuple(ScoredPassage("file", str(number), 0.5 / (1 + number)) for number in range(4))
    unranked = Unranked(Retrieved(passages, "", 1, 1), ("0", "1", "2"), (0.9, 0.8, 0.7))
    answer = PassageRanker(LastBest()).rank_passages(ask(k=3), unranked)
    assert texts_of(answer) == ["2", "1", "0"]
    assert isinstance(answer, Retrieved)
    assert [passage.score for passage in answer.passages] == [0.5, 0.25, 0.5 / 3]


def test_what_there_was_no_time_for_stays_behind_and_the_answer_says_so() -> None:
    answer = PassageRanker(LastBest()).rank_passages(ask(-1.0), found(3, 3))
    assert texts_of(answer) == ["0", "1", "2"]
    assert isinstance(answer, Retrieved)
    assert answer.degraded == "rerank"


def test_without_leave_to_degrade_a_question_that_was_not_reranked_whole_expires() -> None:
    ranker = PassageRanker(LastBest())
    assert isinstance(ranker.rank_passages(ask(-1.0, may_degrade=False), found(3, 3)), DeadlineExpired)


def test_what_nobody_waits_for_any_more_is_given_up_after_the_batch_in_hand() -> None:
    dropped = ask()

    def drop() -> None:
        dropped.dropped = True

    reranker = LastBest(then=drop)
    PassageRanker(reranker).rank_passages(dropped, found(BATCH_PASSAGES + 1, BATCH_PASSAGES + 1))
    assert len(reranker.read) == BATCH_PASSAGES


def test_a_reranked_passage_that_is_not_likely_enough_is_left_out() -> None:
    passages = tuple(ScoredPassage("file", str(number), 0.8 - 0.2 * number) for number in range(3))
    unranked = Unranked(Retrieved(passages, "", 1, 1), ("0", "1", "2"), (0.9, 0.8, 0.7))
    wanted = Retrieve("?", 8, may_degrade=True, score_threshold=0.5)
    asked = SearchAsk(wanted, Deadline.after(60.0), cast(ServedCorpus, None))
    assert texts_of(PassageRanker(LastBest()).rank_passages(asked, unranked)) == ["2", "1"]
