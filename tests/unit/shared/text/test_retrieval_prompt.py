"""How passages and a question become one message, in the forms that models were taught."""

from __future__ import annotations

import pytest

from shared.text.retrieval_prompt import (
    CONTEXT_FORM,
    NOT_IN_DOCUMENTS,
    RETRIEVAL_FORMS,
    retrieval_prompt,
)


@pytest.mark.parametrize("form", RETRIEVAL_FORMS)
def test_passages_are_numbered_lines_and_the_question_comes_last(form: str) -> None:
    asked = retrieval_prompt(["First fact.", "Second fact."], "Which one?", form)
    assert asked.endswith("\n[1] First fact.\n[2] Second fact.\n\nQuestion: Which one?")


def test_a_model_without_a_form_of_its_own_is_told_what_to_do_and_how_to_refuse() -> None:
    instruction = retrieval_prompt(["A fact."], "Which one?").split("\n\n[1]")[0]
    assert instruction.startswith("Answer the question from the passages")
    assert instruction.endswith(NOT_IN_DOCUMENTS)


def test_the_built_in_models_get_the_context_alone() -> None:
    assert retrieval_prompt(["A fact."], "Which one?", CONTEXT_FORM) == (
        "Context:\n[1] A fact.\n\nQuestion: Which one?"
    )


def test_line_breaks_inside_passages_and_questions_become_spaces() -> None:
    asked = retrieval_prompt(["one\n\ntwo\n"], "why\nso?", CONTEXT_FORM)
    assert asked == "Context:\n[1] one two\n\nQuestion: why so?"


def test_braces_in_a_passage_are_text() -> None:
    assert "[1] {question} {x}" in retrieval_prompt(["{question} {x}"], "why?")
