"""How many branches are prepared, and how long: what brings the most right guesses in time."""

from __future__ import annotations

from itertools import product

import pytest

from services.speculator.branch_shape import LIKELY_RIGHT, BranchShape, best_shape

CHANCES = (0.4, 0.2, 0.15, 0.1, 0.05, 0.03, 0.02, 0.01)
FIXED_US, BRANCH_US = 1000.0, 100.0


def fits(branches: int, tokens: int, left_us: float) -> bool:
    return (tokens + 1) * (FIXED_US + branches * BRANCH_US) <= left_us


def right(branches: int, tokens: int) -> float:
    return sum(CHANCES[:branches]) * sum(LIKELY_RIGHT**place for place in range(1, tokens + 1))


@pytest.mark.parametrize("left_us", [2200.0, 2500.0, 3300.0, 4000.0, 5500.0, 6000.0, 7000.0, 9000.0])
def test_no_shape_that_fits_brings_more(left_us: float) -> None:
    shape = best_shape(CHANCES, 4, left_us, FIXED_US, BRANCH_US)
    all_that_fit = [each for each in product(range(1, 9), range(1, 5)) if fits(*each, left_us)]
    assert fits(*shape, left_us)
    assert right(*shape) == pytest.approx(max(right(*each) for each in all_that_fit))


def test_a_little_more_time_than_all_need_is_for_all() -> None:
    assert best_shape(CHANCES, 4, 9000.1, FIXED_US, BRANCH_US) == BranchShape(8, 4)
    assert best_shape(CHANCES, 4, 1e9, FIXED_US, BRANCH_US) == BranchShape(8, 4)


def test_branches_that_cost_nothing_are_all_made() -> None:
    assert best_shape(CHANCES, 2, 3 * FIXED_US, FIXED_US, 0.0) == BranchShape(8, 2)


@pytest.mark.parametrize("left_us", [2 * (FIXED_US + BRANCH_US) - 1, 0.0, -5.0])
def test_without_the_time_for_anything_it_is_one_of_one_token(left_us: float) -> None:
    assert best_shape(CHANCES, 4, left_us, FIXED_US, BRANCH_US) == BranchShape(1, 1)


def test_without_outcomes_there_are_no_branches() -> None:
    assert best_shape((), 4, 9000.0, FIXED_US, BRANCH_US).branches == 0
