"""A batch of questions is searched at once, and each gets what it asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from services.retriever.passage_ranker import RERANKED_PASSAGES, Unranked
from services.retriever.question import MAX_K, SearchAsk
from services.retriever.searcher import Searcher
from services.retriever.served_corpus import ServedCorpus
from shared.deadline import Deadline
from shared.messages import Filters, Retrieve, Retrieved
from shared.retrieval.documents.passages import Passage
from shared.retrieval.encoders.embedder import EmbeddedQuestions
from shared.retrieval.encoders.question_vectors import QuestionVectors
from shared.retrieval.index.passage_index import PassageIndex
from shared.retrieval.index.passage_table import IndexedFile

TEXTS = ("one", "two", "three", "four")


class PlayedEmbedder:
    """A question is the number of the passage that it is about."""

    def embed_questions(self, questions: Sequence[str]) -> EmbeddedQuestions:
        vectors = np.eye(len(TEXTS), dtype=np.float32)[[int(question) for question in questions]]
        return EmbeddedQuestions(vectors, [False] * len(questions), [1.0] * len(questions))


@pytest.mark.parametrize("wanted", [(1, 3), (3, 1)], ids=["few-first", "many-first"])
def test_questions_of_one_batch_get_as_many_passages_as_each_asked_for(wanted: tuple[int, int]) -> None:
    passages = tuple(Passage("", text) for text in TEXTS)
    index = PassageIndex((IndexedFile("file", "key", passages),), np.eye(len(TEXTS), dtype=np.float32))
    searcher, corpus = Searcher(QuestionVectors(PlayedEmbedder())), ServedCorpus.of_index(index)
    answers = searcher.search_passages(
        [
            SearchAsk(Retrieve(str(number), k, may_degrade=True), Deadline.after(60), corpus)
            for number, k in enumerate(wanted)
        ]
    )
    passages_of = [answer.passages for answer in answers if isinstance(answer, Retrieved)]
    assert [len(passages) for passages in passages_of] == list(wanted)
    assert [passages[0].text for passages in passages_of] == ["one", "two"]


class FailingEmbedder:
    """It is never done with a question."""

    def embed_questions(self, questions: Sequence[str]) -> EmbeddedQuestions:
        raise RuntimeError(questions)


GATES = ("a gate of iron", "a wall of stone", "a roof of straw")


def indexed(*texts: str) -> ServedCorpus:
    passages = tuple(Passage("", text, 10 * place, 10 * place + 5) for place, text in enumerate(texts))
    vectors = np.eye(len(texts), 8, dtype=np.float32)
    return ServedCorpus.of_index(PassageIndex((IndexedFile("file", "key", passages),), vectors))


class Meaning:
    """Every question means the passage of one row, and is as well known as the test says."""

    def __init__(self, row: int, *, known: float = 1.0, truncated: bool = False) -> None:
        self._row, self._known, self._truncated = row, known, truncated

    def embed_questions(self, questions: Sequence[str]) -> EmbeddedQuestions:
        vectors = np.eye(8, dtype=np.float32)[[self._row] * len(questions)]
        count = len(questions)
        return EmbeddedQuestions(vectors, [self._truncated] * count, [self._known] * count)


def ask(
    query: str, k: int = 8, *, texts: Sequence[str] = GATES, may_degrade: bool = True, rerank: bool = True
) -> SearchAsk:
    return SearchAsk(Retrieve(query, k, may_degrade, rerank), Deadline.after(60), indexed(*texts))


def search(searcher: Searcher, asked: SearchAsk) -> Retrieved:
    (answer,) = searcher.search_passages([asked])
    assert isinstance(answer, Retrieved)
    return answer


@pytest.mark.parametrize(("known", "first"), [(1.0, "a wall of stone"), (0.0, "a gate of iron")])
def test_meaning_counts_as_much_as_the_embedder_knows_of_the_question(known: float, first: str) -> None:
    searcher = Searcher(QuestionVectors(Meaning(1, known=known)))
    # By words "of" finds all three alike; "gate" would find the first one, were it not half of the weight.
    question = "gate stone of" if known else "gate"
    assert search(searcher, ask(question)).passages[0].text == first


def test_what_words_have_found_is_there_before_meaning_is_searched() -> None:
    searcher = Searcher(QuestionVectors(FailingEmbedder()))
    asked = ask("iron")
    with pytest.raises(RuntimeError):
        searcher.search_passages([asked])
    assert asked.found is not None
    assert asked.found.degraded == "dense search"
    assert [passage.text for passage in asked.found.passages] == ["a gate of iron"]


def test_passages_that_differ_in_spaces_and_case_alone_come_once() -> None:
    answer = search(
        Searcher(QuestionVectors(Meaning(0))), ask("gate", texts=("The gate.", "the  gate.", "a wall"))
    )
    assert [passage.text for passage in answer.passages] == ["The gate.", "a wall"]


def test_passages_say_where_they_stand() -> None:
    searcher = Searcher(QuestionVectors(Meaning(2)))
    passage = search(searcher, ask("straw", 1)).passages[0]
    assert (passage.source, passage.start, passage.end, passage.page) == ("file", 20, 25, 0)


@pytest.mark.parametrize(("truncated", "warned"), [(True, "256 tokens"), (False, "")])
def test_a_question_that_was_cut_is_answered_with_a_warning(truncated: bool, warned: str) -> None:
    searcher = Searcher(QuestionVectors(Meaning(0, truncated=truncated)))
    warning = search(searcher, ask("gate")).warning
    assert warned in warning
    assert bool(warning) == truncated


def unranked(asked: SearchAsk) -> Unranked:
    (answer,) = Searcher(QuestionVectors(Meaning(0)), is_reranked=True).search_passages([asked])
    assert isinstance(answer, Unranked)
    return answer


def test_what_is_to_be_reranked_comes_with_all_that_a_reranker_reads() -> None:
    found = unranked(ask("gate of", 1))
    assert [passage.text for passage in found.found.passages] == list(found.texts)
    assert len(found.texts) == len(GATES)


def test_a_passage_with_more_of_the_words_comes_before_one_that_says_the_rarest_again_and_again() -> None:
    texts = ("gate gate gate gate", "a gate of stone in a wall of stone", "stone wall", "stone", "wall wall")
    searcher = Searcher(QuestionVectors(Meaning(5, known=0.0)))
    found = search(searcher, ask("gate wall stone", texts=texts)).passages
    assert found[0].text == texts[1]


def test_until_the_reranker_is_done_there_is_the_order_of_the_search() -> None:
    asked = ask("gate of", 2)
    unranked(asked)
    assert asked.found is not None
    assert asked.found.degraded == "rerank"
    assert len(asked.found.passages) == 2
    assert asked.found.passages[0].text == "a gate of iron"


def test_more_passages_are_found_than_are_reranked_where_more_are_wanted() -> None:
    found = unranked(ask("gate", MAX_K, texts=[f"gate {number}" for number in range(MAX_K + 1)]))
    assert len(found.found.passages) == MAX_K
    assert len(found.texts) == RERANKED_PASSAGES


def test_a_question_that_is_not_to_be_reranked_is_answered_as_it_was_found() -> None:
    searcher = Searcher(QuestionVectors(Meaning(0)), is_reranked=True)
    answer = search(searcher, ask("gate of", rerank=False))
    assert (answer.degraded, answer.passages[0].text) == ("rerank", "a gate of iron")


@pytest.mark.parametrize(
    ("question", "known", "is_reranked"),
    [
        ("gate", 1.0, False),  # the best passage by words is the best by meaning
        ("wall", 0.8, True),
        ("wall", 1.0, False),  # by meaning another one is clearly the best
        ("wall", 0.5, False),  # by words another one is clearly the best
        ("tower", 1.0, False),  # words find nothing
        ("straw stone", 0.1, True),  # two are alike by words, a third is the best by meaning
        ("straw stone", 0.09, False),  # its states would say as little as its vector
    ],
)
def test_late_interaction_looks_where_words_and_meaning_disagree(
    question: str, known: float, is_reranked: bool
) -> None:
    for reranks_agreed in (True, False):
        searcher = Searcher(
            QuestionVectors(Meaning(0, known=known)), is_reranked=True, reranks_agreed=reranks_agreed
        )
        (answer,) = searcher.search_passages([ask(question)])
        assert isinstance(answer, Unranked) == (is_reranked or reranks_agreed)
        if isinstance(answer, Retrieved):
            assert answer.degraded == ""


def library() -> ServedCorpus:
    """Two documents of a passage each, which the question finds alike; the first one says what it is."""
    files = (
        IndexedFile("en/a.md", "a", (Passage("", "a gate of iron"),), (), (("lang", "en"),)),
        IndexedFile("b.md", "b", (Passage("", "the gate of stone"),)),
    )
    return ServedCorpus.of_index(PassageIndex(files, np.eye(2, 8, dtype=np.float32)))


@pytest.mark.parametrize(
    ("filters", "found", "warned"),
    [
        ((), ["en/a.md", "b.md"], ""),
        ((("lang", ("en",)),), ["en/a.md"], ""),
        ((("source", ("b.md",)),), ["b.md"], ""),
        ((("lang", ("de",)),), [], "no passage has metadata that fits the filters"),
        ((("colour", ("red",)), ("tone", ("a",))), [], "no document has the metadata colour, tone"),
    ],
)
def test_filters_let_through_what_has_their_metadata_and_say_why_there_is_nothing(
    filters: Filters, found: list[str], warned: str
) -> None:
    searcher = Searcher(QuestionVectors(Meaning(0)))
    retrieve = Retrieve("gate of", 8, True, filters=filters)
    answer = search(searcher, SearchAsk(retrieve, Deadline.after(60), library()))
    assert [passage.source for passage in answer.passages] == found
    assert answer.warning.startswith(warned)
    assert bool(answer.warning) == bool(warned)


def test_questions_of_one_batch_are_searched_for_each_in_its_corpus_and_by_its_filters() -> None:
    filtered = Retrieve("gate", 8, True, filters=(("source", ("b.md",)),))
    of_library = library()
    asks = [
        ask("gate"),
        SearchAsk(filtered, Deadline.after(60), of_library),
        SearchAsk(Retrieve("gate", 8, True), Deadline.after(60), of_library),
    ]
    answers = Searcher(QuestionVectors(Meaning(0))).search_passages(asks)
    sources = [[p.source for p in answer.passages] for answer in answers if isinstance(answer, Retrieved)]
    assert sources == [["file"] * 3, ["b.md"], ["en/a.md", "b.md"]]


def test_passages_come_with_their_metadata_and_the_answer_names_the_corpus() -> None:
    answer = search(
        Searcher(QuestionVectors(Meaning(0))),
        SearchAsk(Retrieve("iron", 1, True), Deadline.after(60), library()),
    )
    assert answer.corpus == "default"
    assert answer.passages[0].metadata == (
        ("lang", "en"), ("source", "en/a.md"), ("folder", "en"), ("suffix", "md"),
    )  # fmt: skip


def test_scores_are_probabilities_that_fall_and_those_below_the_threshold_are_left_out() -> None:
    corpus = indexed("a gate of iron", "the gate, the wall", "a roof of straw")
    searcher = Searcher(QuestionVectors(Meaning(0)))

    def scores(threshold: float) -> list[float]:
        wanted = Retrieve("gate of iron", 8, may_degrade=True, score_threshold=threshold)
        asked = SearchAsk(wanted, Deadline.after(60), corpus)
        found = [passage.score for passage in search(searcher, asked).passages]
        assert asked.found is not None
        assert all(passage.score >= threshold for passage in asked.found.passages)
        return found

    every = scores(0.0)
    assert len(every) == 3
    assert 1.0 > every[0] > 0.9 > 0.1 > every[-1] > 0.0
    assert every == sorted(every, reverse=True)
    assert scores(every[1]) == every[:2]
    assert scores(0.9) == every[:1]
    assert scores(1.0) == []
