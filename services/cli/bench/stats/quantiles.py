"""Percentiles by nearest rank, and intervals from order statistics, which assume no distribution."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
"""The share of intervals that hold the true value."""
RANK_DIGITS = 9
"""The digits of a rank: 0.07 of 100 is the seventh value, not what 7.000000000000001 would name."""
TAIL_DEVIATIONS = 12.0
"""The standard deviations around its mean in which a binomial is summed; beyond them is under 1e-30."""


def quantile_rank(count: int, share: float) -> int:
    """Return the index among `count` sorted values of the least that a `share` of all do not exceed."""
    return max(0, math.ceil(round(share * count, RANK_DIGITS)) - 1)


def sorted_quantile(ascending: Floats, share: float) -> float:
    """Return the percentile of sorted values by nearest rank; nan of none."""
    if not len(ascending):
        return math.nan
    return float(ascending[quantile_rank(len(ascending), share)])


def order_interval(ascending: Floats, share: float) -> tuple[float, float]:
    """Return the interval in which the true percentile is at 95 %, whatever the distribution.

    A side that the values are too few to bound is infinite: -inf or inf.
    """
    low, high = order_ranks(len(ascending), share)
    return (
        float(ascending[low - 1]) if low >= 1 else -math.inf,
        float(ascending[high - 1]) if high <= len(ascending) else math.inf,
    )


def order_ranks(count: int, share: float, confidence: float = CONFIDENCE) -> tuple[int, int]:
    """Return the ranks, from 1, of the values that bound the percentile; 0 and count + 1 are none.

    How many of `count` values lie below the true percentile is a binomial, and each tail gets half of the
    doubt: the lower rank is the greatest l with P(B < l) within it, the upper the least u with P(B >= u).
    """
    if count == 0:
        return 0, 1
    doubt = (1.0 - confidence) / 2
    first, masses = _binomial(count, share)
    below = np.cumsum(masses)
    low = first + int(np.searchsorted(below, doubt, side="right"))
    above = np.cumsum(masses[::-1])[::-1]
    high = first + int(np.count_nonzero(above > doubt))
    return low, high


def _binomial(count: int, share: float) -> tuple[int, Floats]:
    """Return the masses around the mean, and which number of successes the first of them is."""
    mean, deviation = count * share, math.sqrt(count * share * (1 - share))
    reach = TAIL_DEVIATIONS * deviation + TAIL_DEVIATIONS
    first, last = max(0, math.floor(mean - reach)), min(count, math.ceil(mean + reach))
    start = math.lgamma(count + 1) - math.lgamma(first + 1) - math.lgamma(count - first + 1)
    start += first * math.log(share) + (count - first) * math.log1p(-share)
    successes = np.arange(first, last, dtype=np.float64)
    steps = np.log((count - successes) / (successes + 1)) + math.log(share) - math.log1p(-share)
    return first, np.exp(start + np.concatenate(([0.0], np.cumsum(steps))))
