"""How often a head's tokens are right, by the confidence that it states."""

from __future__ import annotations

import pytest

from shared.engine.scheduling.head_chances import HeadBet, HeadChances

SURE = 0.97  # the middle of a bin


def test_at_first_a_head_is_taken_to_be_too_sure_of_itself() -> None:
    chances = HeadChances()
    assert chances.chance(SURE, 1.0) == pytest.approx(SURE**2, abs=0.01)
    assert chances.chance(0.53, 1.0) == pytest.approx(0.28, abs=0.01)
    assert chances.chance(1.0, 2.0) == 1.0


def test_tokens_are_bet_on_as_long_as_all_before_are_right_often_enough() -> None:
    bet = HeadChances().bet([SURE, SURE, 0.3, SURE], 1.0, 0.4)
    assert bet.num_tokens == 2
    assert bet.right == pytest.approx(SURE**2 + SURE**4, abs=0.01)
    assert HeadChances().bet([0.2, SURE], 1.0, 0.4) == HeadBet(0, 0.0)


def test_a_confidence_that_is_mostly_wrong_is_worth_less_and_others_stay_as_they_were() -> None:
    chances = HeadChances()
    before = chances.chance(0.4, 1.0)
    for _ in range(100):
        chances.learn([SURE], 0, chances.new_trust())
    assert chances.chance(SURE, 1.0) < 0.1
    assert chances.chance(0.4, 1.0) == before


def test_a_sequence_is_trusted_as_far_as_its_tokens_were_right() -> None:
    chances = HeadChances()
    wrong, right = chances.new_trust(), chances.new_trust()
    for _ in range(3):
        HeadChances().learn([SURE], 0, wrong)
        HeadChances().learn([0.6, 0.6], 2, right)
    assert wrong.value < 0.3
    assert right.value > 1.2


def test_a_sequence_that_comes_is_trusted_as_the_last_ones_deserved() -> None:
    chances = HeadChances()
    assert chances.new_trust().value == 1.0
    for confidence in (0.2, 0.5, 0.8, SURE):  # each says something of a head, whatever it states
        chances.learn([confidence], 0, chances.new_trust())
    assert chances.new_trust().value < 0.3


def test_what_a_head_states_is_believed_no_more_than_a_few_of_its_tokens() -> None:
    chances = HeadChances()
    for _ in range(8):
        chances.learn([SURE], 0, chances.new_trust())
    assert chances.chance(SURE, 1.0) < 0.35


def test_tokens_behind_the_first_wrong_one_say_nothing() -> None:
    chances = HeadChances()
    before = chances.chance(SURE, 1.0)
    chances.learn([0.4, SURE, SURE], 0, chances.new_trust())
    assert chances.chance(SURE, 1.0) == before
