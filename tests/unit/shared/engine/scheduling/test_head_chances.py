"""How often a head's tokens are right, by the confidence that it states."""

from __future__ import annotations

import pytest

from shared.engine.scheduling.head_chances import HeadBet, HeadChances


def test_at_first_a_head_is_believed() -> None:
    chances = HeadChances()
    assert chances.chance(0.9, 1.0) == pytest.approx(0.9, abs=0.05)
    assert chances.chance(1.0, 2.0) == 1.0


def test_tokens_are_bet_on_as_long_as_all_before_are_right_often_enough() -> None:
    bet = HeadChances().bet([0.9, 0.9, 0.3, 0.9], 1.0, 0.4)
    assert bet.num_tokens == 2
    assert bet.right == pytest.approx(0.9 + 0.81, abs=0.1)
    assert HeadChances().bet([0.2, 0.9], 1.0, 0.4) == HeadBet(0, 0.0)


def test_a_confidence_that_is_mostly_wrong_is_worth_less_and_others_stay_as_they_were() -> None:
    chances = HeadChances()
    for _ in range(100):
        chances.learn([0.9], 0, 1.0)
    assert chances.chance(0.9, 1.0) < 0.1
    assert chances.chance(0.4, 1.0) == pytest.approx(0.4, abs=0.05)


def test_a_sequence_is_trusted_as_far_as_its_tokens_were_right() -> None:
    trust = 1.0
    for _ in range(20):
        trust = HeadChances().learn([0.9], 0, trust)
    assert trust < 0.5
    for _ in range(100):
        trust = HeadChances().learn([0.6, 0.6], 2, trust)
    assert trust > 1.0


def test_what_a_head_states_is_believed_no_more_than_a_few_of_its_tokens() -> None:
    chances = HeadChances()
    for _ in range(8):
        chances.learn([0.9], 0, 1.0)
    assert chances.chance(0.9, 1.0) < 0.35


def test_tokens_behind_the_first_wrong_one_say_nothing() -> None:
    chances = HeadChances()
    before = chances.chance(0.9, 1.0)
    chances.learn([0.4, 0.9, 0.9], 0, 1.0)
    assert chances.chance(0.9, 1.0) == before
