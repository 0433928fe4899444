"""The questions about the documentation: what they are, and how answers to them are judged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shared.text.retrieval_prompt import NOT_IN_DOCUMENTS
from tests.bench.document_questions import (
    JUDGED_WORDS,
    DocumentQuestion,
    is_refusal,
    is_right,
    judged_text,
    read_questions,
)

DOCUMENTS = Path(__file__).parents[3] / "shared" / "demo" / "documents"
MEMORY = DocumentQuestion("doc-x", "How much?", "x.md", "1,024 MB", (r"\b1024 ?mb\b",), False)
NOTHING = DocumentQuestion("none-x", "Who?", "", "", (), False)


def test_sixty_can_be_answered_and_ten_cannot_half_of_each_held_out() -> None:
    for half in ("open", "held_out"):
        questions = read_questions(half)
        assert sum(question.is_answerable for question in questions) == 30
        assert len(questions) == 35
    assert len({question.question for question in read_questions("all")}) == 70


def test_questions_that_others_are_chosen_by_are_none_of_those_that_are_reported() -> None:
    chosen_by = {question.question for question in read_questions("development")}
    assert len(chosen_by) == 49
    assert chosen_by.isdisjoint(question.question for question in read_questions("all"))


def test_each_answer_stands_in_its_page_and_is_accepted() -> None:
    for question in read_questions("all") + read_questions("development"):
        if question.is_answerable:
            page = (DOCUMENTS / question.page).read_text(encoding="utf-8")
            assert is_right(question, question.answer), question
            found = any(
                re.search(pattern, " ".join(page.lower().split()))
                for pattern in question.accepted
                if not pattern.startswith("^")
            )
            assert found, question


def test_questions_for_yes_or_no_are_others_and_as_many_are_granted_as_denied() -> None:
    questions = read_questions("yes_no")
    others = {question.question for question in read_questions("all") + read_questions("development")}
    assert others.isdisjoint(question.question for question in questions)
    assert sum(not question.is_answerable for question in questions) == 4
    for word in ("yes", "no"):
        asked = [question for question in questions if question.answer.startswith(f"{word}, ")]
        assert len(asked) == 13
        assert all(is_right(question, question.answer) for question in asked)
        assert not any(is_right(question, "Yes and no") for question in asked if word == "no")


@pytest.mark.parametrize("answer", ["1024 MB", "It is **1,024 MB**.", "`1024mb`"])
def test_marks_case_and_commas_in_numbers_do_not_count(answer: str) -> None:
    assert is_right(MEMORY, answer)


def test_an_answer_is_judged_by_its_first_words() -> None:
    filler = "well " * (JUDGED_WORDS - 2)
    assert is_right(MEMORY, filler + "1024 MB")
    assert not is_right(MEMORY, filler + "well 1024 MB")
    assert judged_text("One  Two") == "one two"


@pytest.mark.parametrize(
    "answer",
    [
        NOT_IN_DOCUMENTS,
        "The passages do not mention a price.",
        "It is not specified.",
        "There is no information about that.",
        "This is not part of the given text.",
    ],
)
def test_a_refusal_is_right_only_where_there_is_no_answer(answer: str) -> None:
    assert is_refusal(answer)
    assert is_right(NOTHING, answer)
    assert not is_right(MEMORY, answer + " 1024 MB")


@pytest.mark.parametrize("answer", ["The gateway.", "It is not a port.", "No, it is optional", ""])
def test_what_says_something_else_is_no_refusal(answer: str) -> None:
    assert not is_refusal(answer)
    assert not is_right(NOTHING, answer)
