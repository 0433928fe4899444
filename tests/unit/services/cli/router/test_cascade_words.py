"""The words on a cascade name its points, its confidence and the rule to write."""

from __future__ import annotations

import math

import pytest

from services.cli.router.cascade_curve import EVERYBODY, NOBODY, CascadePoint
from services.cli.router.cascade_words import advice_words, confidence_words, curve_words

ENDS = [CascadePoint(NOBODY, 0.0, 0.5, 1.0, 10.0), CascadePoint(EVERYBODY, 1.0, 0.9, 5.0, 110.0)]
MIDDLE = CascadePoint(-0.5, 0.25, 0.85, 2.0, 35.0)


def test_each_point_is_a_row() -> None:
    rows = [line.split() for line in curve_words([ENDS[0], MIDDLE, ENDS[1]]).splitlines()[1:]]
    assert rows == [
        ["nobody", "0%", "50.0%", "1.00", "10"],
        ["-0.500", "25%", "85.0%", "2.00", "35"],
        ["everybody", "100%", "90.0%", "5.00", "110"],
    ]


@pytest.mark.parametrize(
    ("chosen", "rule"),
    [
        (MIDDLE, 'to = "a"\ncascade = { to = "b", min_logprob = -0.5 }\n'),
        (ENDS[0], 'to = "a"    # no cascade: asking b anew makes hardly more of the answers right\n'),
        (ENDS[1], 'to = "b"    # no cascade: a is not surer where it is right\n'),
    ],
)
def test_the_rule_is_a_cascade_where_one_pays(chosen: CascadePoint, rule: str) -> None:
    said = advice_words(("a", "b"), chosen, [ENDS[0], MIDDLE, ENDS[1]])
    assert said.startswith(rule)
    assert "25% are asked anew and 85.0% are right (50.0% by a, 90.0% where b answers all" in said


def test_a_confidence_that_tells_something_is_told_and_else_nothing() -> None:
    assert "is surer in 48% of all couples; at 50% a cascade is no better" in confidence_words("a", 0.48)
    assert confidence_words("a", math.nan) == ""
