"""How many tokens of a draft are bet on, by how often those at their positions were right."""

from __future__ import annotations

import pytest

from shared.engine.scheduling.position_chances import POSITIONS, PositionChances


def right_at_first(learning: float = 0.2) -> PositionChances:
    """Return those of a drafter whose first tokens are right one time after the other."""
    chances = PositionChances(learning)
    for _ in range(60):
        chances.learn(1, 1)
    return chances


def test_nothing_is_bet_on_a_drafter_of_which_nothing_is_known_and_one_right_token_says_much() -> None:
    chances = PositionChances(0.05)
    assert chances.bet(8, 0.05).num_tokens == 0
    chances.learn(1, 1)
    assert chances.bet(8, 0.4).num_tokens == 1
    for _ in range(8):
        chances.learn(1, 0)
    assert chances.bet(8, 0.15).num_tokens == 0


def test_tokens_are_bet_on_while_all_before_them_and_they_are_right_more_often_than_they_cost() -> None:
    chances = right_at_first()
    bet = chances.bet(10, 0.3)
    assert bet.num_tokens == 3  # 1, 0.6, 0.36
    assert bet.gain == pytest.approx(1.96 - 3 * 0.3, abs=0.01)
    assert chances.bet(2, 0.3).num_tokens == 2
    assert right_at_first().bet(10, 1.0).num_tokens == 0


def test_a_position_is_learned_apart_from_the_others() -> None:
    chances = PositionChances(0.2)
    for _ in range(40):
        chances.learn(4, 2)  # the third is always wrong
    assert chances.bet(8, 0.5).num_tokens == 2


def test_tokens_behind_the_first_wrong_one_say_nothing() -> None:
    short, long = PositionChances(0.2), PositionChances(0.2)
    short.learn(2, 1)
    long.learn(60, 1)
    short.learn(0, 0)
    assert short.bet(20, 0.05) == long.bet(20, 0.05)


def test_what_is_far_behind_counts_like_the_last_position() -> None:
    chances = PositionChances(0.5)
    for _ in range(20):
        chances.learn(4 * POSITIONS, 4 * POSITIONS)
    assert chances.bet(100, 0.5).num_tokens == 100


def test_a_copy_learns_by_itself() -> None:
    first = right_at_first()
    second = first.copy(0.9)
    second.learn(1, 0)
    assert second.bet(1, 0.5).num_tokens == 0
    assert first.bet(1, 0.5).num_tokens == 1
