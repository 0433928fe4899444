"""Estimate how likely it is that a passage answers its question, from what the search knows of both.

Learned by `python -m tests.bench.bench_calibration --fit`, which says how far the estimates are from what is
right on other sets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WEIGHTS = (-8.61, 6.51, 1.69, 4.64, 2.67, 6.21)
"""Weights of `PassageEvidence.features`, by logistic regression over the first ten passages of CISI's and
CACM's questions and of every second one of the first half of XQuAD's English and German ones, and over those
of the same questions where the passages that answer them are left out."""
FOLLOWERS = 10
"""The passages that the best one by words is compared with."""


@dataclass(frozen=True, slots=True)
class PassageEvidence:
    """The `cosine` of the vectors; `words`, the share of the greatest BM25 score that the question's words
    could give; `fused`, the score among the passages found, from 0 to 1; how much of the question is `known`
    to the embedder; `lead`, how far the best passage by words stands above those after it: where nothing
    answers a question, its words are scattered over many passages alike."""

    cosine: float
    words: float
    fused: float
    known: float
    lead: float

    @property
    def features(self) -> tuple[float, float, float, float, float, float]:
        return 1.0, self.known * self.cosine, self.words, self.fused, 1.0 - self.known, self.lead

    @property
    def probability(self) -> float:
        total = sum(weight * each for weight, each in zip(WEIGHTS, self.features, strict=True))
        return 1 / (1 + math.exp(-total))


def lead_of(scores: Sequence[float], most: float) -> float:
    """Return how far the first BM25 score is above the mean of the next FOLLOWERS, as a share of the `most`
    that the question's words could give; what is not there counts 0."""
    return (scores[0] - sum(scores[1 : 1 + FOLLOWERS]) / FOLLOWERS) / most if scores else 0.0


def falling(probabilities: Sequence[float]) -> list[float]:
    """Return the nearest probabilities, by their squares, that never rise: passages are told best first, and
    the order of the search stands (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for each in probabilities:
        pools.append((each, 1))
        while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
            (one, count), (other, more) = pools[-2:]
            pools[-2:] = [((one * count + other * more) / (count + more), count + more)]
    return [mean for mean, count in pools for _ in range(count)]
