"""How many tokens of a draft are bet on, by how often those at their positions were right."""

from __future__ import annotations

import pytest

from shared.engine.scheduling.position_chances import POSITIONS, PositionChances


def test_tokens_are_bet_on_while_all_before_them_and_they_are_right_more_often_than_they_cost() -> None:
    chances = PositionChances(0.1, (0.5,) * POSITIONS)
    bet = chances.bet(10, 0.12)
    assert bet.num_tokens == 3  # 0.5, 0.25, 0.125
    assert bet.gain == pytest.approx(0.875 - 3 * 0.12)
    assert chances.bet(2, 0.12).num_tokens == 2
    assert chances.bet(10, 0.6).num_tokens == 0


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
    first = PositionChances(0.2)
    second = first.copy(0.9)
    second.learn(1, 0)
    assert second.bet(1, 0.5).num_tokens == 0
    assert first.bet(1, 0.5).num_tokens == 1
