"""Questions for yes or no, of statements and of questions with their answers."""

from __future__ import annotations

import pytest

from shared.demo.invent import Inventor, default_vocabulary
from shared.demo.lessons.relation_tables import KINDS, read_relations
from shared.demo.lessons.relations import tell
from shared.demo.lessons.yes_no import asked_of_answer, asked_of_statement, asked_whether

RELATIONS = [relation for kind in KINDS for relation in read_relations(kind)]


@pytest.mark.parametrize(
    ("sentence", "question"),
    [
        ("The drain timeout of {e} is {v}.", "Is the drain timeout of {e} {v}?"),
        ("{e} holds {v} {t[0]}.", "Does {e} hold {v} {t[0]}?"),
        ("A {t[1]} of {e} may have {v} {u[0]}.", "May a {t[1]} of {e} have {v} {u[0]}?"),
        ("{v} designed {e}.", "Did {v} design {e}?"),
        ("The reports of {e} are {v}.", "Are the reports of {e} {v}?"),
    ],
)
def test_a_statement_is_asked_back(sentence: str, question: str) -> None:
    assert asked_of_statement(sentence) == question


@pytest.mark.parametrize(
    "sentence",
    [
        "In {v} {w} founded {e}.",
        "{e} never {a[0]}.",
        "When {c[0]}, {e} {a[0]}.",
        "Nobody but {v} is allowed to use {e}.",
        "{v} are what {e} makes of {x}.",
    ],
)
def test_a_statement_of_another_form_is_not(sentence: str) -> None:
    assert asked_of_statement(sentence) is None


@pytest.mark.parametrize(
    ("question", "answer", "whether"),
    [
        ("How many passengers were on board?", "five", "Were five passengers on board?"),
        ("How many files can the relay hold?", "16", "Can the relay hold 16 files?"),
        ("How long is the saw?", "3 feet", "Is the saw 3 feet long?"),
        ("Who was arrested?", "Almonte", "Was Almonte arrested?"),
        ("What is the name of the river?", "Amu", "Is the name of the river Amu?"),
        ("Which model does the relay use?", "Ki-3", "Does the relay use Ki-3?"),
    ],
)
def test_an_answer_is_asked_back(question: str, answer: str, whether: str) -> None:
    assert asked_of_answer(question, answer) == whether


@pytest.mark.parametrize("question", ["Why did he leave?", "What did he do?", "What is the pump made of?"])
def test_an_answer_to_a_question_of_another_form_is_not(question: str) -> None:
    assert asked_of_answer(question, "wood") is None


def test_no_question_is_made_twice() -> None:
    asked = [("Who was arrested?", "Almonte")]
    assert asked_whether(["Almonte was arrested.", "Almonte was arrested."], asked) == (
        "Was Almonte arrested?",
    )


def test_claims_are_granted_with_what_is_told_and_denied_with_it_where_they_say_something_else() -> None:
    inventor = Inventor.seeded(5, default_vocabulary())
    claims = [
        (relation, told, *claim)
        for relation in RELATIONS
        for _ in range(3)
        for told in [tell(inventor, relation, "the night relay")]
        for claim in told.claims
    ]
    for relation, told, question, answer in claims:
        word, reason = answer.split(", ", 1)
        assert reason in {right for _, right in told.questions}, (relation, answer)
        assert question.endswith("?")
        assert "{" not in question
        if relation.answer == "{v}" and "weigh" in question:
            assert (reason in question) == (word == "Yes"), (question, answer)
    granted = sum(answer.startswith("Yes, ") for *_, answer in claims)
    assert granted / len(claims) == pytest.approx(0.5, abs=0.05)
    assert len({relation.says for relation, *_ in claims}) > 0.7 * len(RELATIONS)
