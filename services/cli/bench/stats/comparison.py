"""Whether the second of two is better than the first, by pairs, looked at several times on the way.

Each look could find by chance what is not there; so each gets its part of the doubt, and all of them together
find a difference where there is none in at most 5 % of comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from services.cli.bench.stats.bootstrap import LEAST_PAIRS, paired_ratio
from services.cli.bench.stats.quantiles import CONFIDENCE

LOOK_FACTOR = 1.6
"""The pairs at one look, over those at the look before."""


@dataclass(frozen=True, slots=True)
class PairComparison:
    """`ratio`: second / first, between `low` and `high`. `looks`: how many there may be in all."""

    ratio: float
    low: float
    high: float
    pairs: int
    looks: int

    @property
    def decided(self) -> bool:
        return self.low > 1.0 or self.high < 1.0

    def verdict(self, quantity: str, *, lower_is_better: bool) -> str:
        """Return what is found, in words."""
        span = f"{self.ratio:.3f} of A's, {self.low:.3f} to {self.high:.3f} at 95 %"
        if not self.decided:
            return f"no difference shown at {self.pairs} pairs: B's {quantity} is {span}"
        better = (self.ratio < 1.0) == lower_is_better
        return f"B is {'faster' if better else 'slower'}: its {quantity} is {span}, by {self.pairs} pairs"


def look_plan(most_pairs: int) -> list[int]:
    """Return after how many pairs to look; the last is `most_pairs`, which is `LEAST_PAIRS` or more."""
    looks = []
    pairs = float(LEAST_PAIRS)
    while round(pairs) < most_pairs:
        looks.append(round(pairs))
        pairs *= LOOK_FACTOR
    return [*looks, most_pairs]


def compare_pairs(first: Sequence[float], second: Sequence[float], looks: int, seed: int) -> PairComparison:
    """Compare at one of so many looks. All values are above 0."""
    confidence = 1 - (1 - CONFIDENCE) / looks
    ratio, low, high = paired_ratio(first, second, seed, confidence)
    if math.isclose(low, high):  # pairs that are all alike: nothing is known of their spread
        low, high = 0.0, math.inf
    return PairComparison(ratio, low, high, len(first), looks)
