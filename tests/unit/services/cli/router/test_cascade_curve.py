"""A threshold decides how many answers of a cascade are right, and what they cost."""

from __future__ import annotations

import math

import pytest

from services.cli.router.cascade_curve import (
    EVERYBODY,
    NOBODY,
    CascadePoint,
    JudgedAnswer,
    JudgedPair,
    cascade_curve,
    cascade_point,
    fewest_anew,
    surer_share,
)


def pair(mean_logprob: float, small: bool, large: bool) -> JudgedPair:
    return JudgedPair(JudgedAnswer(small, mean_logprob, 1.0, 10), JudgedAnswer(large, -0.1, 4.0, 100))


UNSURE = [pair(-1.0 - n / 10, small=False, large=True) for n in range(5)]
SURE = [pair(-0.1 - n / 100, small=True, large=n > 0) for n in range(15)]


def test_the_unsure_are_answered_anew_and_cost_both_models() -> None:
    found = cascade_point([*SURE, *UNSURE], -0.5)
    assert found == CascadePoint(-0.5, anew=0.25, right=1.0, seconds=2.0, tokens=35)


def test_the_ends_of_the_curve_are_each_model_by_itself() -> None:
    first, *_, last = cascade_curve([*SURE, *UNSURE])
    assert (first.min_logprob, first.anew, first.right, first.seconds) == (NOBODY, 0, 0.75, 1.0)
    assert (last.min_logprob, last.anew, last.right, last.seconds) == (EVERYBODY, 1, 0.95, 5.0)


def test_ever_more_are_asked_anew_along_the_curve() -> None:
    shares = [point.anew for point in cascade_curve([*SURE, *UNSURE])]
    assert shares == sorted(set(shares))
    assert len(shares) == 11


def test_answers_that_are_equally_sure_stand_on_one_side() -> None:
    alike = [pair(-0.25, small=True, large=True)] * 20
    assert [point.anew for point in cascade_curve(alike)] == [0, 1]


def test_an_answer_without_tokens_is_never_asked_anew() -> None:
    assert cascade_point([pair(0.0, small=True, large=True)], EVERYBODY).anew == 0


@pytest.mark.parametrize(("keep", "anew"), [(1.0, 0.25), (0.95, 0.2), (0.75, 0.0)])
def test_the_fewest_are_asked_that_keep_the_share(keep: float, anew: float) -> None:
    assert math.isclose(fewest_anew(cascade_curve([*SURE, *UNSURE]), keep).anew, anew, abs_tol=0.051)


@pytest.mark.parametrize(
    ("pairs", "share"),
    [
        ([*SURE, *UNSURE], 1.0),
        ([pair(-0.2, small=True, large=True), pair(-0.2, small=False, large=True)], 0.5),
        ([pair(-0.9, small=True, large=True), pair(-0.2, small=False, large=True)], 0.0),
    ],
)
def test_the_share_of_right_answers_that_are_surer_is_told(pairs: list[JudgedPair], share: float) -> None:
    assert surer_share(pairs) == share


def test_where_all_are_right_nobody_is_surer() -> None:
    assert math.isnan(surer_share(SURE))
