"""Tell what a cascade of two models gives and costs, by the threshold of its confidence. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

STEPS = 10
"""The parts in which the questions are asked anew, those first of which the small model was least sure."""
NOBODY = -math.inf
"""The threshold below which no answer is."""
EVERYBODY = 0.0
"""The threshold below which every answer is whose tokens were not all certain."""


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """A model's answer: whether it is `right`, the mean log-probability of its tokens, how long it took, and
    the tokens that were computed for it, of its prompt too."""

    right: bool
    mean_logprob: float
    seconds: float
    tokens: int


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """The answers of both models to one question."""

    small: JudgedAnswer
    large: JudgedAnswer


@dataclass(frozen=True, slots=True)
class CascadePoint:
    """A threshold, and means over questions: the shares that are asked anew and answered right, the time and
    the computed tokens of both models together."""

    min_logprob: float
    anew: float
    right: float
    seconds: float
    tokens: float


def cascade_point(pairs: Sequence[JudgedPair], min_logprob: float) -> CascadePoint:
    """Return what becomes of `pairs`, one at least, with that threshold."""
    anew = [pair.small.mean_logprob < min_logprob for pair in pairs]
    judged = list(zip(pairs, anew, strict=True))
    return CascadePoint(
        min_logprob,
        mean(anew),
        mean((pair.large if again else pair.small).right for pair, again in judged),
        mean(pair.small.seconds + again * pair.large.seconds for pair, again in judged),
        mean(pair.small.tokens + again * pair.large.tokens for pair, again in judged),
    )


def cascade_curve(pairs: Sequence[JudgedPair]) -> list[CascadePoint]:
    """Return the points from asking nobody anew to asking everybody, without those that repeat one."""
    points = [cascade_point(pairs, threshold) for threshold in _thresholds(pairs)]
    return [point for at, point in enumerate(points) if not at or point.anew > points[at - 1].anew]


def fewest_anew(curve: Sequence[CascadePoint], keep: float) -> CascadePoint:
    """Return the point of `curve` that asks fewest anew and has the share `keep` of the most right answers
    that any point has."""
    most = max(point.right for point in curve)
    return next(point for point in curve if point.right >= keep * most)


def surer_share(pairs: Sequence[JudgedPair]) -> float:
    """Return in what share of couples of a right and a wrong answer of the small model the right one is
    surer; equal ones count half. NaN where all are right or all wrong.

    It is the area under the ROC curve (Hanley and McNeil 1982): 0.5 where the confidence tells nothing.
    """
    right = [pair.small.mean_logprob for pair in pairs if pair.small.right]
    wrong = [pair.small.mean_logprob for pair in pairs if not pair.small.right]
    if not right or not wrong:
        return math.nan
    return mean((a > b) + (a == b) / 2 for a in right for b in wrong)


def _thresholds(pairs: Sequence[JudgedPair]) -> list[float]:
    """Return thresholds that rise, each in the middle between two answers, with three digits as in a file."""
    sure = sorted(pair.small.mean_logprob for pair in pairs)
    places = sorted({round(len(sure) * step / STEPS) for step in range(1, STEPS)} - {0, len(sure)})
    return [NOBODY, *(round((sure[at - 1] + sure[at]) / 2, 3) for at in places), EVERYBODY]
