"""The cost of asking a draft head is learned from what it took."""

from __future__ import annotations

from random import Random

import pytest

from shared.engine.scheduling.head_cost import HeadCost

PASS_US, ROW_US = 900.0, 110.0


def learned(calls: list[tuple[int, int]], *, noise: float = 0.0, cost: HeadCost | None = None) -> HeadCost:
    cost, random = cost or HeadCost(), Random(3)
    for passes, rows in calls:
        us = PASS_US * passes + ROW_US * rows
        cost.observe(passes, rows, us * (1 + noise * random.uniform(-1, 1)))
    return cost


def test_a_reading_and_a_row_are_told_apart_once_calls_were_of_several_rows() -> None:
    cost = learned([(1, 1), (1, 8), (3, 5), (2, 16)] * 3)
    assert cost.pass_us == pytest.approx(PASS_US, rel=0.01)
    assert cost.row_us == pytest.approx(ROW_US, rel=0.03)


def test_while_all_calls_were_of_one_row_it_takes_nothing_beside_the_reading() -> None:
    cost = learned([(1, 1), (4, 4)])
    assert cost.pass_us == pytest.approx(PASS_US + ROW_US)
    assert cost.row_us == pytest.approx(0.0, abs=1e-6)


def test_what_a_row_takes_is_remembered_through_calls_of_one() -> None:
    cost = learned([(1, 1), (1, 8)])
    learned([(3, 3)] * 40, cost=cost)
    assert cost.row_us == pytest.approx(ROW_US, rel=0.2)


def test_calls_that_were_held_up_hardly_count() -> None:
    cost = learned([(1, 1), (1, 8), (2, 6)] * 6, noise=0.05)
    cost.observe(1, 4, 50_000.0)
    assert cost.pass_us == pytest.approx(PASS_US, rel=0.2)


def test_nothing_is_negative_whatever_is_seen() -> None:
    cost, random = HeadCost(), Random(5)
    for _ in range(500):
        rows = random.randrange(1, 40)
        cost.observe(random.randrange(1, min(rows, 8) + 1), rows, random.uniform(1, 5000))
        assert min(cost.pass_us, cost.row_us) >= 0
        assert cost.pass_us + cost.row_us > 0


@pytest.mark.parametrize("us", [0.0, -1.0])
def test_what_took_no_time_says_nothing(us: float) -> None:
    cost = HeadCost()
    cost.observe(1, 1, us)
    assert (cost.pass_us, cost.row_us) == (0.0, 0.0)
