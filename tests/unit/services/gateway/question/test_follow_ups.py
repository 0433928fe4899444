"""Which questions of a chat lean on what was said, and what they are searched for with."""

from __future__ import annotations

import pytest

from services.gateway.question.follow_ups import (
    MAX_LEANING_CHARS,
    MAX_QUESTIONS_BEFORE,
    MAX_SCANNED_TURNS,
    USER,
    leans,
    with_history,
)

TOWER = "Who designed the Eiffel Tower?"


@pytest.mark.parametrize(
    "question",
    [
        "When was it built?",
        "When was he born?",
        "What is the name of his father?",
        "What were the names of its new partners?",
        "When did Denmark join it?",
        "How far is Paris from it?",
        "What about it?",
        "And in winter?",
        "and why?",
        "But how many of them were there",
        "How about Rome?",
        "Why?",
        "Since when?",
        "In winter?",
        "What does that mean for a worker? Why is that?",
        "Who else?",
        "Which one is faster?",
        "How many people live there?",
        "Who wrote this?",
        "Tell me more",
        "What award has it won?",
        "What\u2019s its height?",
    ],
)
def test_a_question_about_what_it_does_not_name_leans(question: str) -> None:
    assert leans(question)


@pytest.mark.parametrize(
    "question",
    [
        TOWER,
        "How many tokens does a block hold?",
        "What happens when Tesla sold his first patent?",
        "When did the committee publish its report?",
        "Which university has its origins in a school of medicine?",
        "Is it true that water boils at 90 degrees in the mountains?",
        "What is it called when a queue refuses work?",
        "How long does it take to start a stack?",
        "What is septicemia?",
        "Who was Hannibal?",
        "What are the prices this year?",
        "Those who are shed may come back when?",
        "And who designed the tall iron tower that stands in the middle of Paris?",
        "Wie hoch ist der Turm?",
        "",
        "?!",
        "\u9580\u5728\u54ea\u91cc",
    ],
)
def test_a_question_that_says_what_it_is_about_does_not(question: str) -> None:
    assert not leans(question)


@pytest.mark.parametrize(("chars", "leant"), [(MAX_LEANING_CHARS, True), (MAX_LEANING_CHARS + 1, False)])
def test_a_long_question_stands_by_itself(chars: int, leant: bool) -> None:
    question = "When was it built".ljust(chars - 1, "x") + "?"
    assert len(question) == chars
    assert leans(question) == leant


def test_a_follow_up_is_searched_for_behind_what_it_leans_on() -> None:
    history = [(USER, TOWER), ("assistant", "Gustave Eiffel's office did.")]
    assert with_history("When was it built?", history) == f"{TOWER} When was it built?"


def test_a_question_that_leans_on_nothing_is_searched_for_as_it_is() -> None:
    assert with_history("How high is Mount Everest?", [(USER, TOWER)]) == "How high is Mount Everest?"


def test_without_a_question_before_it_a_follow_up_is_left_as_it_is() -> None:
    assert with_history("When was it built?", []) == "When was it built?"
    others = [("system", "Be brief."), (USER, " "), ("assistant", "Hello.")]
    assert with_history("When was it built?", others) == "When was it built?"


def test_a_follow_up_of_a_follow_up_goes_back_to_what_both_are_about() -> None:
    history = [
        (USER, "Where is Oslo?"),
        (USER, TOWER),
        ("assistant", "He did."),
        (USER, "When was it built?"),
    ]
    assert with_history("And painted?", history) == f"{TOWER} When was it built? And painted?"


def test_it_goes_back_over_so_many_questions_and_no_further() -> None:
    history = [(USER, f"and {number}?") for number in range(10)]
    before = " ".join(f"and {number}?" for number in range(10 - MAX_QUESTIONS_BEFORE, 10))
    assert with_history("and then?", history) == f"{before} and then?"


@pytest.mark.parametrize(("between", "is_seen"), [(MAX_SCANNED_TURNS - 1, True), (MAX_SCANNED_TURNS, False)])
def test_it_looks_over_so_many_turns_and_no_further(between: int, is_seen: bool) -> None:
    history = [(USER, TOWER), *[("assistant", "Hm.")] * between]
    assert (with_history("and then?", history) != "and then?") == is_seen


def test_of_a_long_question_before_it_the_beginning_counts() -> None:
    found = with_history("and then?", [(USER, "x" * MAX_LEANING_CHARS + "y")])
    assert found == "x" * MAX_LEANING_CHARS + " and then?"
