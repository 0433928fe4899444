"""What drafts gain whose number is chosen by confidence."""

from __future__ import annotations

import pytest
import torch

from shared.training.heads.head_acceptance import MeasuredDrafts
from shared.training.heads.head_worth import HeadPrices, choose_lengths, head_gain

PRICES = HeadPrices(drafted=0.1, verified=0.2)


def test_drafts_that_are_always_right_pay_as_many_as_may_be() -> None:
    drafts = MeasuredDrafts(torch.ones(3, 5).bool(), torch.ones(3, 5))
    gain = head_gain(drafts, 4, PRICES)
    assert (gain.tokens_per_step, gain.verified) == (5, 4)
    assert gain.speedup == pytest.approx(5 / (1 + 4 * 0.3))


def test_drafts_that_are_never_right_are_not_made() -> None:
    gain = head_gain(MeasuredDrafts(torch.zeros(3, 5).bool(), torch.ones(3, 5)), 4, PRICES)
    assert (gain.tokens_per_step, gain.verified, gain.speedup) == (1, 0, 1)


def test_no_drafts_gain_nothing() -> None:
    assert head_gain(MeasuredDrafts(torch.zeros(0, 5).bool(), torch.zeros(0, 5)), 3, PRICES).speedup == 1


def test_confidence_saves_what_is_wrong() -> None:
    """Half of the places are right and known as such: verified are these alone."""
    right = torch.tensor([[True] * 5, [False] * 5])
    gain = head_gain(MeasuredDrafts(right, right.float()), 4, PRICES)
    assert (gain.tokens_per_step, gain.verified) == (3, 2)
    assert gain.speedup == pytest.approx(3 / (1 + 0.1 * 2.5 + 0.2 * 2))


def test_more_is_drafted_while_it_is_worth_both_prices_and_verified_while_worth_one() -> None:
    confidence = torch.tensor([[0.25, 0.99], [0.35, 0.9], [0.19, 1.0], [0.35, 0.5]])
    drafted, verified = choose_lengths(confidence, PRICES, rate=1.0)
    assert drafted.tolist() == [1, 2, 1, 2]
    assert verified.tolist() == [1, 2, 0, 1]
