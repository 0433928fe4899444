"""The cost of a verified row depends on how many sequences there are beside it."""

from __future__ import annotations

from random import Random

import pytest

from shared.engine.cost_model import Features
from shared.engine.scheduling.draft_prices import DraftPrices
from shared.engine.scheduling.row_costs import RowCosts

ONE = DraftPrices(10_000.0, 10_000.0, 0.3, 0.0)
MANY = DraftPrices(80_000.0, 2_500.0, 0.6, 0.0)
BELIEVED_US = 1_000.0


def observed(
    costs: RowCosts, sequences: int, rows: int, us: float, times: int = 1, keys: int = 0
) -> RowCosts:
    for _ in range(times):
        costs.observe(Features(sequences + rows, sequences, keys), ONE if sequences == 1 else MANY, us)
    return costs


def test_what_was_not_seen_is_believed() -> None:
    costs = RowCosts()
    assert costs.row_us(32, BELIEVED_US) == BELIEVED_US
    observed(costs, 32, 0, 80_000.0, 10)
    assert costs.row_us(32, BELIEVED_US) == BELIEVED_US


def test_what_rows_cost_is_learned_beside_few_and_many_sequences_apart() -> None:
    costs = RowCosts()
    observed(costs, 1, 4, 10_000.0 + 4 * 700, 20)
    observed(costs, 32, 4, 80_000.0 + 4 * 2_300, 20)
    assert costs.row_us(1, BELIEVED_US) == pytest.approx(700, rel=0.03)
    assert costs.row_us(32, BELIEVED_US) == pytest.approx(2_300, rel=0.03)
    assert costs.row_us(40, BELIEVED_US) == costs.row_us(32, BELIEVED_US)
    assert costs.row_us(8, BELIEVED_US) == BELIEVED_US


def test_a_few_rows_say_more_than_what_is_believed() -> None:
    costs = observed(RowCosts(), 32, 4, 80_000.0 + 4 * 2_300)
    assert costs.row_us(32, BELIEVED_US) == pytest.approx((4 * 2_300 + 2 * BELIEVED_US) / 6)


def test_what_plain_steps_take_more_than_predicted_is_no_rows_fault() -> None:
    costs = observed(RowCosts(), 32, 0, 84_000.0, 60)
    observed(costs, 32, 4, 84_000.0 + 4 * 2_000, 60)
    assert costs.row_us(32, BELIEVED_US) == pytest.approx(2_000, rel=0.05)


def test_keys_that_rows_read_are_no_part_of_it() -> None:
    prices = DraftPrices(10_000.0, 10_000.0, 0.1, 0.0001)  # a key costs a microsecond
    costs = RowCosts()
    for _ in range(40):
        costs.observe(Features(5, 1, 5 * 2000), prices, 10_000.0 + 4 * (700 + 2000))
    assert costs.row_us(1, BELIEVED_US) == pytest.approx(700, rel=0.03)


def test_it_is_found_in_noise_and_steps_that_were_held_up_count_for_little() -> None:
    costs, random = RowCosts(), Random(3)
    for _ in range(200):
        noise = 1 + random.uniform(-0.05, 0.05)
        observed(costs, 1, 3, noise * (10_000.0 + 3 * 800))
    assert costs.row_us(1, BELIEVED_US) == pytest.approx(800, rel=0.2)
    observed(costs, 32, 4, 80_000.0 + 4 * 2_000, 40)
    observed(costs, 32, 4, 800_000.0)
    assert costs.row_us(32, BELIEVED_US) < 2_500


def test_what_is_not_seen_any_more_is_forgotten() -> None:
    costs = observed(RowCosts(), 32, 4, 80_000.0 + 4 * 2_300, 20)
    observed(costs, 32, 0, 80_000.0, 5000)
    assert costs.row_us(32, BELIEVED_US) == pytest.approx(BELIEVED_US, rel=0.3)


def test_it_is_never_less_than_nothing() -> None:
    assert observed(RowCosts(), 32, 4, 10.0, 5).row_us(32, BELIEVED_US) == 0.0
