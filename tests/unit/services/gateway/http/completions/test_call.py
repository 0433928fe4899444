"""The time that a body has."""

from __future__ import annotations

import pytest

from services.gateway.http.completions.call import body_time_s


@pytest.mark.parametrize(
    ("come_bytes", "expected_s"),
    [(0, 5.0), (1024, 6.0), (25 * 1024 - 1, 29.999), (25 * 1024, 30.0), (4 << 20, 30.0)],
)
def test_a_body_has_a_grace_then_a_second_for_each_kilobyte_and_never_more_than_the_whole(
    come_bytes: int, expected_s: float
) -> None:
    assert round(body_time_s(come_bytes), 3) == expected_s
