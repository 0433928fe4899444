"""Percentiles as every benchmark and drill means them."""

from __future__ import annotations

import math
from collections.abc import Collection

DIGITS = 9
"""The digits of a rank: 0.07 of 100 is the seventh value, and not the one that 7.000000000000001 would
name."""


def percentile(values: Collection[float], share: float) -> float:
    """By nearest rank: the least of the values that a `share` of all do not exceed; nan of none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(round(share * len(values), DIGITS)) - 1)]
