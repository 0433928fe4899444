"""Intervals by resampling: of percentiles whose values come in clusters, and of the ratio within pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from services.cli.bench.stats.quantiles import CONFIDENCE, Floats, quantile_rank

ROUNDS = 200
"""The resamples of a percentile whose values come in clusters."""
RATIO_ROUNDS = 10_000
"""The resamples of a ratio, of which there are few pairs."""
LEAST_CLUSTERS = 5
"""The clusters below which nothing is resampled: an interval of so few would be too narrow."""
LEAST_PAIRS = 5
T_STEPS = 20_000
"""The steps in which Student's density is summed."""


def clustered_interval(
    values: Floats, owners: NDArray[np.int64], share: float, seed: int, rounds: int = ROUNDS
) -> tuple[float, float]:
    """Return the interval of a percentile where whole clusters are drawn anew; `owners` numbers them from 0.

    Gaps of one stream are alike, so that each of them counts for less than a value of its own would.
    Infinite on both sides where there are fewer than `LEAST_CLUSTERS`.
    """
    clusters = int(owners.max()) + 1 if len(owners) else 0
    if clusters < LEAST_CLUSTERS:
        return -math.inf, math.inf
    order = np.argsort(values, kind="stable")
    ascending, owners = values[order], owners[order]
    random = np.random.default_rng(seed)
    found = np.empty(rounds)
    for number in range(rounds):
        times = np.bincount(random.integers(0, clusters, clusters), minlength=clusters)
        found[number] = weighted_quantile(ascending, times[owners], share)
    doubt = (1.0 - CONFIDENCE) / 2
    found = found[~np.isnan(found)]
    return float(np.quantile(found, doubt)), float(np.quantile(found, 1 - doubt))


def weighted_quantile(ascending: Floats, times: NDArray[np.int64], share: float) -> float:
    """Return the percentile of sorted values of which each is there so many `times`; nan of none."""
    reached = np.cumsum(times)
    total = int(reached[-1]) if len(reached) else 0
    if total == 0:
        return math.nan
    return float(ascending[int(np.searchsorted(reached, quantile_rank(total, share), side="right"))])


def paired_ratio(first: Sequence[float], second: Sequence[float], seed: int) -> tuple[float, float, float]:
    """Return the geometric mean of second / first over pairs, and its interval by drawing pairs anew.

    The percentiles are widened for few pairs, as Student's are (Hesterberg's expanded interval); below
    `LEAST_PAIRS` the interval is (0, inf). All values are above 0.
    """
    logs = np.log(np.asarray(second)) - np.log(np.asarray(first))
    count = len(logs)
    ratio = math.exp(float(logs.mean()))
    if count < LEAST_PAIRS:
        return ratio, 0.0, math.inf
    random = np.random.default_rng(seed)
    means = logs[random.integers(0, count, (RATIO_ROUNDS, count))].mean(axis=1)
    wide = math.sqrt(count / (count - 1)) * student_quantile(1 - (1 - CONFIDENCE) / 2, count - 1)
    doubt = NormalDist().cdf(-wide)
    low, high = np.quantile(means, (doubt, 1 - doubt))
    return ratio, math.exp(float(low)), math.exp(float(high))


def student_quantile(share: float, freedom: int) -> float:
    """Return a quantile above the median of Student's distribution, by bisection of its summed density."""
    low, high = 0.0, 1.0
    while _student_mass(high, freedom) + 0.5 < share:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if _student_mass(middle, freedom) + 0.5 < share:
            low = middle
        else:
            high = middle
    return high


def _student_mass(until: float, freedom: int) -> float:
    """Return the probability of 0 to `until`, by Simpson's rule."""
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    at = np.linspace(0.0, until, T_STEPS + 1)
    density = np.exp(scale - (freedom + 1) / 2 * np.log1p(at * at / freedom))
    inner = 4 * density[1:-1:2].sum() + 2 * density[2:-1:2].sum()
    return float((density[0] + inner + density[-1]) * until / T_STEPS / 3)
