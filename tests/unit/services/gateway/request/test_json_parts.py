"""Each kind of part is counted by itself, and what stands in texts is none."""

from __future__ import annotations

import pytest

from services.gateway.request.json_parts import JsonLimits

LIMITS = JsonLimits(objects=3, texts=2, values=4)


@pytest.mark.parametrize("raw", ["[[[1]]]", '["a", "b"]', "[1, 2, 3, 4]", r'["[[[[", "\"{{{{,,,,,"]'])
def test_what_is_within_the_limits_breaks_none(raw: str) -> None:
    assert LIMITS.broken_by(raw.encode()) == ""


@pytest.mark.parametrize(
    ("raw", "broken"),
    [
        ("[[[[1]]]]", "3 arrays and objects"),
        ('{"a": [{"b": [1]}]}', "3 arrays and objects"),
        (r'["\\", [[[]]]]', "3 arrays and objects"),
        ('["a", "b", "c"]', "2 texts"),
        ("[1, 2, 3, 4, 5]", "4 values"),
    ],
)
def test_the_limit_that_is_broken_is_named(raw: str, broken: str) -> None:
    assert LIMITS.broken_by(raw.encode()) == broken
