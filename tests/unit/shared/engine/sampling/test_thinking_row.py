"""The place of a thinking follows from the tokens alone, and what closes it comes within its budget."""

from __future__ import annotations

import pytest

from shared.engine.sampling.thinking_row import ThinkingRow
from shared.sampling.thinking import OPENING_TOKENS, ThinkingRule

OPEN, CLOSE, BREAK = 90, 91, 92
RULE = ThinkingRule(CLOSE, (BREAK, CLOSE, BREAK), OPEN, begun=True, max_tokens=3)


def row(rule: ThinkingRule = RULE, *ids: int, holds_behind: bool = False) -> ThinkingRow:
    made = ThinkingRow(rule, holds_behind=holds_behind)
    for token_id in ids:
        made.take(token_id)
    return made


def asked(budget: int = 3) -> ThinkingRule:
    return ThinkingRule(CLOSE, (BREAK, CLOSE, BREAK), OPEN, max_tokens=budget)


@pytest.mark.parametrize(
    ("ids", "forced"),
    [
        ((), None),
        ((1, 2), None),
        ((1, 2, 3), BREAK),
        ((1, 2, 3, BREAK), CLOSE),
        ((1, 2, 3, BREAK, CLOSE), BREAK),
        ((1, 2, 3, BREAK, CLOSE, BREAK), None),
        ((1, 2, CLOSE), None),
        ((1, CLOSE, 5, 5, 5), None),
    ],
)
def test_the_closing_is_forced_at_the_budget_token_by_token(ids: tuple[int, ...], forced: int | None) -> None:
    assert row(RULE, *ids).forced() == [forced]


def test_a_budget_of_nothing_closes_at_once() -> None:
    assert row(ThinkingRule(CLOSE, (CLOSE,), begun=True, max_tokens=0)).forced() == [CLOSE]
    assert row(asked(0), OPEN).forced() == [BREAK]


def test_drafts_are_looked_at_one_after_another() -> None:
    assert row(RULE, 1).forced((2, 3, BREAK, CLOSE, BREAK)) == [None, None, BREAK, CLOSE, BREAK, None]
    assert row(RULE, 1).forced((CLOSE, 2, 3)) == [None, None, None, None]


def test_thinking_begins_with_its_mark_among_the_first_tokens_alone() -> None:
    assert row(asked(), BREAK, OPEN).is_thinking
    assert not row(asked(), *[1] * OPENING_TOKENS, OPEN, 1, 2, 3).is_thinking
    assert row(asked(), *[1] * OPENING_TOKENS, OPEN, 1, 2, 3).forced() == [None]


def test_tokens_of_the_thinking_are_none_of_the_answer() -> None:
    made = row(asked())
    assert [made.take(token_id) for token_id in (OPEN, 1, CLOSE, 2, CLOSE)] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_before_a_grammar_the_closing_is_written_to_its_end() -> None:
    held = row(RULE, 1, CLOSE, holds_behind=True)
    assert held.is_thinking
    assert held.forced() == [BREAK]
    assert not row(RULE, 1, CLOSE, BREAK, holds_behind=True).is_thinking


def test_before_a_grammar_only_the_first_token_may_open_the_thinking() -> None:
    held = row(asked(), holds_behind=True)
    assert (held.opening_id, held.is_thinking) == (OPEN, False)
    assert not held.take(1)
    assert held.opening_id is None


def test_a_thinking_may_be_closed_at_any_place_of_it() -> None:
    made = row(ThinkingRule(CLOSE, (BREAK, CLOSE), begun=True), 1, 2, 3, 4)
    assert made.forced() == [None]
    made.close()
    assert made.forced() == [BREAK]
    made.take(BREAK)
    made.close()
    assert made.forced() == [CLOSE]
    made.take(CLOSE)
    made.close()
    assert made.forced() == [None]


def test_one_that_was_closed_before_it_began_ends_as_it_begins() -> None:
    made = row(asked())
    made.close()
    assert made.forced() == [None]
    made.take(OPEN)
    assert made.forced() == [BREAK]
