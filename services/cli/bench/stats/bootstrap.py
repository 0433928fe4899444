"""Intervals by resampling: of percentiles whose values come in clusters, and of the ratio within pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.cli.bench.stats.quantiles import CONFIDENCE, Floats, quantile_rank

ROUNDS = 200
"""The resamples of a percentile whose values come in clusters."""
RATIO_ROUNDS = 10_000
"""The resamples of a ratio, of which there are few pairs."""
LEAST_CLUSTERS = 5
"""The clusters below which nothing is resampled: an interval of so few would be too narrow."""
LEAST_PAIRS = 6
"""The pairs below which a ratio has no interval."""
MOST_LOG = 700.0


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


def paired_ratio(
    first: Sequence[float], second: Sequence[float], seed: int, confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Return the geometric mean of second / first over pairs, and its interval by drawing pairs anew.

    What is drawn is Student's ratio, the error of the mean over its own spread: an interval by the drawn
    means alone never leaves the range of few pairs, and finds far too often what is not there. Below
    `LEAST_PAIRS` the interval is (0, inf). All values are above 0.
    """
    logs = np.log(np.asarray(second)) - np.log(np.asarray(first))
    count = len(logs)
    mean = float(logs.mean())
    if count < LEAST_PAIRS:
        return math.exp(mean), 0.0, math.inf
    random = np.random.default_rng(seed)
    drawn = logs[random.integers(0, count, (RATIO_ROUNDS, count))]
    errors, spreads = drawn.mean(axis=1) - mean, drawn.std(axis=1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.nan_to_num(errors / spreads, nan=0.0)  # copies of one pair: infinite, or no error at all
    doubt = (1 - confidence) / 2
    low, high = np.quantile(ratios, (doubt, 1 - doubt), method="inverted_cdf")
    spread = float(logs.std(ddof=1))
    return math.exp(mean), _bounded_exp(mean - high * spread), _bounded_exp(mean - low * spread)


def _bounded_exp(value: float) -> float:
    """Return e to a value that may be infinite, or too large."""
    return math.exp(value) if value < MOST_LOG else math.inf
