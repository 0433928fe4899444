"""The one definition of a percentile in figures of ours."""

from __future__ import annotations

import math

import pytest

from tests.support.percentile import percentile


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([4.0, 1.0, 2.0, 3.0], 0.5, 2.0),
        (range(1, 101), 0.99, 99),
        (range(1, 102), 0.99, 100),
        (range(1, 101), 0.07, 7),
        ([5.0, 6.0], 0.0, 5.0),
        ([5.0, 6.0], 1.0, 6.0),
    ],
)
def test_it_is_the_least_value_that_so_many_do_not_exceed(
    values: list[float], share: float, expected: float
) -> None:
    assert percentile(values, share) == expected


def test_of_nothing_there_is_none() -> None:
    assert math.isnan(percentile([], 0.5))
