"""A percentile is one of the numbers, by nearest rank."""

from __future__ import annotations

import pytest

from shared.telemetry.percentile import percentile


@pytest.mark.parametrize(
    ("share", "found"), [(0.0, 1), (0.01, 1), (0.07, 7), (0.5, 50), (0.501, 51), (0.99, 99), (1.0, 100)]
)
def test_it_is_the_least_number_that_the_share_does_not_exceed(share: float, found: int) -> None:
    assert percentile(range(1, 101), share, 0) == found


def test_of_nothing_it_is_what_the_caller_says() -> None:
    assert percentile([], 0.5, 0.0) == 0.0
