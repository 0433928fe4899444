"""A choice says what was asked, what was taken, and why not the others."""

from __future__ import annotations

from services.gateway.request.model_choice import DOWN, NAMED, RULE, SHARE, SHED, ModelChoice

CHOICE = ModelChoice("auto", "large", "paying", left=("medium", "small"))


def test_a_choice_says_by_which_rule_and_what_was_passed_over() -> None:
    last = CHOICE.next(SHED).next(DOWN)
    assert (last.model, last.left) == ("small", ())
    assert last.sentence == "auto is small by rule paying; large was shed, medium was down"
    assert [(each.model, each.why) for each in last.message().skipped] == [
        ("large", "shed"),
        ("medium", "down"),
    ]


def test_a_share_and_an_estimate_are_said() -> None:
    choice = ModelChoice("auto", "next", "2", share=0.05, hardness=0.7, note="the retriever was slow")
    assert (
        choice.sentence == "auto is next by rule 2 (5 % of its requests), 0.70 hard; the retriever was slow"
    )


def test_what_a_model_was_taken_by_is_why_the_first_was_not() -> None:
    assert (CHOICE.by, ModelChoice("auto", "next", "2", share=0.05).by) == (RULE, SHARE)
    assert ModelChoice("large", "large", left=("small",)).by == NAMED
    assert CHOICE.next(SHED).next(DOWN).by == SHED


def test_a_choice_that_is_settled_goes_on_to_nobody() -> None:
    assert CHOICE.settle().left == ()
