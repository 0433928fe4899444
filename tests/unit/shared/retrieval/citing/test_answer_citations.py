"""Sentences and the passages that support them: where, which ones none does, and what bounds the work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from shared.messages import CitedSentence
from shared.retrieval.citing.answer_citations import (
    MAX_CITED_SENTENCES,
    MAX_EMBEDDED_TEXTS,
    MAX_PASSAGE_SENTENCES,
    SUPPORTED,
    Match,
    PassagePart,
    cite_answer,
)
from shared.retrieval.citing.evidence import TextFacts
from shared.retrieval.citing.sentences import TextSpan
from shared.text.retrieval_prompt import NOT_IN_DOCUMENTS

RIVERS = "Rivers begin in hills. The Rhine flows 1230 km to the North Sea. It freezes in no winter."
LAKES = "Lake Constance lies between three countries. Its deepest place is at 251 metres."
PASSAGES = (LAKES, RIVERS)


def embed_alike(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """All texts mean the same: words and facts decide."""
    return np.ones((len(texts), 1), np.float32)


def embed_apart(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """No two texts mean the same."""
    return np.eye(len(texts), dtype=np.float32)


def cited(
    answer: str, *, question: str = "", passages: Sequence[str] = PASSAGES, alike: bool = True
) -> list[CitedSentence]:
    embed = embed_alike if alike else embed_apart
    return cite_answer(question, answer, passages, embed, lambda: True)


def quotes(answer: str, **options: str) -> list[str]:
    """What supports each sentence, "" for nothing."""
    found = cited(answer, **options)  # type: ignore[arg-type]  # texts alone
    return [
        PASSAGES[each.place - 1][each.passage_start : each.passage_end] if each.place else ""
        for each in found
    ]


def test_each_sentence_has_the_part_that_says_it_and_what_nothing_says_has_none() -> None:
    answer = "The Rhine flows to the North Sea. \u00c4pfel sind rot.  Its deepest place is at 251 m, [1]."
    assert quotes(answer) == [
        "The Rhine flows 1230 km to the North Sea.",
        "",
        "Its deepest place is at 251 metres.",
    ]
    assert [answer[each.start : each.end] for each in cited(answer)] == [
        "The Rhine flows to the North Sea.",
        "\u00c4pfel sind rot.",
        "Its deepest place is at 251 m, [1].",
    ]


@pytest.mark.parametrize(
    "said",
    [
        "The Rhine flows 1231 km to the North Sea.",
        "The Rhine flows to the North Pole.",
        "The Rhine does not flow 1230 km to the North Sea.",
        "The Rhine doesn't flow 1230 km to the North Sea.",
        "It freezes in winter.",
    ],
)
def test_another_number_or_name_or_a_negation_is_not_supported_however_alike(said: str) -> None:
    assert quotes(said) == [""]


def test_what_two_sentences_in_a_row_say_is_supported_by_both() -> None:
    assert quotes("Lake Constance between three countries is deepest at 251 metres.") == [LAKES]


@pytest.mark.parametrize(
    "said",
    [
        "The Rhine lies between three countries.",
        "The deepest place of the Rhine is at 251 metres.",
        "Rivers freeze in three countries.",
    ],
)
def test_what_is_taken_from_two_places_is_not_supported_though_all_words_are_there(said: str) -> None:
    assert quotes(said) == [""]


@pytest.mark.parametrize(
    ("coverage", "cosine", "stitched", "support"),
    [
        (1.0, 1.0, 0.0, 0.985),
        (0.7, 0.7, 0.0, 0.883),
        (0.5, 0.5, 0.0, 0.645),
        (0.5, 0.4, 0.0, 0.527),
        (0.9, 0.8, 0.2, 0.690),
        (0.9, 0.8, 0.4, 0.204),
    ],
)
def test_support_is_what_was_learned(coverage: float, cosine: float, stitched: float, support: float) -> None:
    part = PassagePart(0, TextSpan(0, 1), TextFacts.of("x"), "x")
    told = Match(part, coverage, cosine, stitched, may_support=True).support
    assert told == pytest.approx(support, abs=0.002)
    assert Match(part, coverage, cosine, stitched, may_support=False).support == 0.0
    assert SUPPORTED == 0.6


def test_other_words_need_a_vector_that_is_near() -> None:
    said = "Constance touches countries, namely three of them."
    assert quotes(said) != [""]
    assert [each.place for each in cited(said, alike=False)] == [0]


def test_a_short_answer_is_found_by_its_question() -> None:
    passages = ("In 1901 he came. In 1902 the Rhine was measured.", "The Elbe froze in 1902.")
    (found,) = cited("1902.", question="When was the Rhine measured?", passages=passages)
    assert (found.place, passages[0][found.passage_start : found.passage_end]) == (
        1,
        "In 1902 the Rhine was measured.",
    )


def test_an_answer_without_words_or_passages_without_any_is_fine() -> None:
    assert cited(" ... ") == []
    assert [each.place for each in cited("So it is.", passages=("", "..."))] == [0]


def test_the_first_sentences_are_looked_at() -> None:
    answer = "Rivers begin in hills. " * (MAX_CITED_SENTENCES + 1)
    assert len(cited(answer)) == MAX_CITED_SENTENCES
    last = "Filler words stand here. " * (MAX_PASSAGE_SENTENCES - 1) + "Rivers begin in hills."
    assert cited("Rivers begin in hills.", passages=(last,))[0].place == 1
    beyond = "Filler words stand here. " * MAX_PASSAGE_SENTENCES + "Rivers begin in hills."
    assert cited("Rivers begin in hills.", passages=(beyond,))[0].place == 0


def test_few_texts_are_embedded_and_none_when_nobody_waits() -> None:
    embedded: list[int] = []

    def counted(texts: Sequence[str]) -> npt.NDArray[np.float32]:
        embedded.append(len(texts))
        return embed_alike(texts)

    passages = [f"Rivers begin in place p{number} of hill h{number}." for number in range(64)]
    answer = " ".join(f"Rivers start at place p{number} near hill h{number}." for number in range(64))
    cite_answer("", answer, [" ".join(passages[:32]), " ".join(passages[32:])], counted, lambda: True)
    assert len(embedded) == 1
    assert MAX_EMBEDDED_TEXTS - 2 <= embedded[0] <= MAX_EMBEDDED_TEXTS
    cite_answer("", answer, passages[:16], counted, lambda: False)
    assert len(embedded) == 1


def test_that_the_passages_do_not_tell_is_no_statement_that_one_of_them_could_support() -> None:
    assert cited(NOT_IN_DOCUMENTS) == []
    (only,) = cited(f"{NOT_IN_DOCUMENTS} The Rhine flows 1230 km.")
    assert only.start == len(NOT_IN_DOCUMENTS) + 1
