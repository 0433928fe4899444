"""As many tokens behind a match are bet on as are right more often than they cost."""

from __future__ import annotations

import pytest

from shared.engine.scheduling.match_chances import NO_BET, MatchChances
from shared.engine.scheduling.ngram_index import LONGEST_MATCH

STARTING = (0.5, 0.6, 0.7, 0.8, 0.8, 0.8, 0.8)


def test_a_right_token_makes_the_match_longer_and_the_next_one_likelier() -> None:
    bet = MatchChances(STARTING).bet(2, 8, price=0.1)
    chances = [0.5, 0.5 * 0.6, 0.5 * 0.6 * 0.7, 0.5 * 0.6 * 0.7 * 0.8]
    chances += [chances[-1] * 0.8, chances[-1] * 0.8 * 0.8]
    paying = [chance for chance in chances if chance >= 0.1]
    assert bet.num_tokens == len(paying)
    assert bet.gain == pytest.approx(sum(paying) - 0.1 * len(paying))


def test_no_more_is_bet_on_than_there_is_and_nothing_that_costs_more() -> None:
    assert MatchChances(STARTING).bet(LONGEST_MATCH, 3, price=0.01).num_tokens == 3
    assert MatchChances(STARTING).bet(2, 8, price=0.51) == NO_BET
    assert MatchChances(STARTING).bet(2, 0, price=0.01) == NO_BET


def test_tokens_after_the_first_wrong_one_say_nothing() -> None:
    chances = MatchChances(STARTING)
    chances.learn(2, proposed=5, accepted=1)
    assert chances.bet(2, 1, 0.0).gain == pytest.approx(0.5 + 0.12 * 0.5)
    assert chances.bet(3, 1, 0.0).gain == pytest.approx(0.6 - 0.12 * 0.6)
    assert chances.bet(4, 1, 0.0).gain == pytest.approx(0.7)


def test_matches_of_the_longest_length_and_beyond_are_one() -> None:
    chances = MatchChances(STARTING)
    chances.learn(LONGEST_MATCH, proposed=2, accepted=0)
    assert chances.bet(LONGEST_MATCH, 1, 0.0).gain == pytest.approx(0.8 - 0.12 * 0.8)
