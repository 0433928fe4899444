"""What a drafted token costs, in steps of its sequence."""

from __future__ import annotations

import pytest

from shared.engine.cost_model import CostModel, Features
from shared.engine.scheduling.draft_prices import LOWEST_PRICE, DraftPrices
from tests.support.known_cost import KnownCost


def test_a_token_costs_a_row_and_the_keys_that_it_reads() -> None:
    prices = DraftPrices.of(KnownCost(1000.0, 100.0, key_us=0.1), Features(2, 2, 0))
    assert prices is not None
    assert prices.share_us == pytest.approx(600)
    assert prices.of_token(500) == pytest.approx((100 + 50) / 600)


def test_a_row_that_was_never_seen_beside_its_sequence_costs_what_the_two_cost() -> None:
    prices = DraftPrices.of(KnownCost(500.0, 0.0, sequence_us=500.0), Features(1, 1, 0))
    assert prices is not None
    assert prices.row == pytest.approx(0.5)


def test_no_token_is_taken_to_be_free() -> None:
    prices = DraftPrices.of(KnownCost(1000.0, 0.001), Features(1, 1, 0))
    assert prices is not None
    assert prices.row == LOWEST_PRICE


def test_there_are_none_while_nothing_is_known_and_where_nobody_decodes() -> None:
    assert DraftPrices.of(CostModel(512), Features(1, 1, 0)) is None
    assert DraftPrices.of(KnownCost(1000.0, 10.0), Features(0, 0, 0)) is None
