"""Percentiles are numpy's, and their intervals are those of exact binomials."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.bench.stats.quantiles import (
    order_interval,
    order_ranks,
    quantile_rank,
    sorted_quantile,
)

SHARES = (0.5, 0.9, 0.95, 0.99, 0.999)
VALUES = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=300)


@given(VALUES, st.sampled_from(SHARES))
def test_a_percentile_is_numpy_s_by_inverted_distribution(values: list[float], share: float) -> None:
    ascending = np.sort(np.asarray(values))
    # numpy multiplies without rounding: a share of a whole number of values may miss by one bit there
    exact = Fraction(str(share)) * len(values)
    wanted = ascending[max(0, math.ceil(exact) - 1)]
    assert sorted_quantile(ascending, share) == wanted
    if exact.denominator != 1:
        assert wanted == np.quantile(ascending, share, method="inverted_cdf")


def test_of_nothing_there_is_no_percentile() -> None:
    assert math.isnan(sorted_quantile(np.empty(0), 0.5))
    assert order_interval(np.empty(0), 0.5) == (-math.inf, math.inf)


def test_a_rank_is_not_one_too_high_for_want_of_digits() -> None:
    assert quantile_rank(100, 0.07) == 6


def exact_ranks(count: int, share: Fraction, doubt: Fraction) -> tuple[int, int]:
    masses = [math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(count + 1)]
    below = list(accumulate(masses, initial=Fraction(0)))  # below[rank]: the mass of all ranks before it
    low = max(rank for rank in range(count + 1) if below[rank] <= doubt)
    high = min(rank for rank in range(1, count + 2) if below[-1] - below[rank] <= doubt)
    return low, high


@given(st.integers(1, 150), st.sampled_from(SHARES))
def test_ranks_of_an_interval_are_those_of_exact_arithmetic(count: int, share: float) -> None:
    assert order_ranks(count, share) == exact_ranks(count, Fraction(str(share)), Fraction(25, 1000))


@pytest.mark.parametrize(("share", "count"), [(0.5, 6), (0.9, 36), (0.99, 368)])
def test_a_side_that_values_cannot_bound_is_infinite(share: float, count: int) -> None:
    """One value fewer than its doubt allows leaves the upper side open."""
    assert order_interval(np.arange(count, dtype=float), share)[1] < math.inf
    assert order_interval(np.arange(count - 1, dtype=float), share)[1] == math.inf


def test_an_interval_holds_the_true_percentile_as_often_as_it_says() -> None:
    random = np.random.default_rng(7)
    true = -math.log(0.1)  # the 90th percentile of an exponential
    held = 0
    for _ in range(2000):
        low, high = order_interval(np.sort(random.exponential(size=120)), 0.9)
        held += low <= true <= high
    assert 0.94 <= held / 2000 <= 0.985  # ranks are whole: it errs on the wide side


@pytest.mark.parametrize("share", SHARES)
def test_of_millions_the_ranks_are_where_the_normal_distribution_has_them(share: float) -> None:
    count = 3_000_000
    low, high = order_ranks(count, share)
    reach = 1.96 * math.sqrt(count * share * (1 - share))
    assert low == pytest.approx(count * share - reach, abs=3)
    assert high == pytest.approx(count * share + reach, abs=3)
