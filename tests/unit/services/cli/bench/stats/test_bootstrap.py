"""Resampled intervals: of clusters drawn whole, and of ratios of pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.bench.stats.bootstrap import (
    clustered_interval,
    paired_ratio,
    weighted_quantile,
)
from services.cli.bench.stats.quantiles import sorted_quantile


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 4)), max_size=60), st.floats(0.01, 0.99))
def test_a_weight_is_so_many_copies(pairs: list[tuple[float, int]], share: float) -> None:
    pairs.sort()
    values = np.asarray([value for value, _ in pairs], dtype=np.float64)
    times = np.asarray([count for _, count in pairs], dtype=np.int64)
    copies = np.repeat(values, times)
    found = weighted_quantile(values, times, share)
    assert found == sorted_quantile(copies, share) or (math.isnan(found) and not len(copies))


def test_clusters_that_are_each_alike_make_a_wide_interval() -> None:
    """A thousand equal values of one stream are one value, and not a thousand."""
    random = np.random.default_rng(3)
    means = random.normal(100.0, 10.0, 30)
    owners = np.repeat(np.arange(30), 1000)
    low, high = clustered_interval(np.repeat(means, 1000), owners, 0.5, seed=1)
    assert high - low > 3.0
    alone = np.arange(30_000)
    narrow = clustered_interval(random.normal(100.0, 10.0, 30_000), alone, 0.5, seed=1, rounds=50)
    assert narrow[1] - narrow[0] < 1.0


def test_few_clusters_bound_nothing() -> None:
    owners = np.asarray([0, 1, 2, 3])
    assert clustered_interval(np.arange(4.0), owners, 0.5, seed=1) == (-math.inf, math.inf)
    assert clustered_interval(np.empty(0), np.empty(0, dtype=np.int64), 0.5, seed=1)[1] == math.inf


def test_the_same_seed_draws_the_same_interval() -> None:
    values, owners = np.arange(100.0), np.arange(100) % 10
    assert clustered_interval(values, owners, 0.9, seed=4) == clustered_interval(values, owners, 0.9, seed=4)


def test_a_ratio_of_few_pairs_has_no_interval() -> None:
    ratio, low, high = paired_ratio([1.0, 2.0], [2.0, 4.0], seed=1)
    assert (ratio, low, high) == pytest.approx((2.0, 0.0, math.inf))


def test_what_both_of_a_pair_share_is_not_in_the_interval() -> None:
    """Rounds differ tenfold among each other, and by 5 % within each."""
    random = np.random.default_rng(5)
    first = 10.0 ** random.uniform(0, 1, 12)
    second = first * 1.05 * np.exp(random.normal(0, 0.01, 12))
    ratio, low, high = paired_ratio(list(first), list(second), seed=1)
    assert 1.0 < low < ratio < high < 1.1


def test_intervals_of_few_pairs_hold_the_true_ratio_as_often_as_they_say() -> None:
    random = np.random.default_rng(11)
    held = 0
    for number in range(400):
        noise = np.exp(random.normal(0, 0.1, (2, 6)))
        _, low, high = paired_ratio(list(noise[0]), list(noise[1]), seed=number)
        held += low <= 1.0 <= high
    assert 0.92 <= held / 400 <= 0.99
