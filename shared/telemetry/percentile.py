"""Percentiles of a few numbers, where a library for arrays would be too much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

Number = TypeVar("Number", int, float)


def percentile(ascending: Sequence[Number], share: float, of_none: Number) -> Number:
    """Return the nearest-rank percentile of sorted numbers: the least that a `share` of all do not exceed."""
    if not ascending:
        return of_none
    # Rounded, as 0.07 * 100 is a little more than 7.
    return ascending[max(0, math.ceil(round(share * len(ascending), 9)) - 1)]
