"""How good rankings are where documents answer questions, one or several, better or worse."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

DEPTH = 10
RECALL_DEPTH = 5
RESAMPLED = 10_000
"""The draws of a bootstrap."""

Gains = Mapping[str, float]
"""The worth of each document that answers a question."""


@dataclass(frozen=True, slots=True)
class RankingScores:
    """Means over questions, of the first DEPTH documents: nDCG (Järvelin and Kekäläinen 2002), reciprocal
    rank of the first that answers, and the share of those that answer among the first five."""

    ndcgs: tuple[float, ...]
    """The score of each question."""
    reciprocal_rank: float
    recall_5: float

    @property
    def ndcg(self) -> float:
        return fmean(self.ndcgs)

    def __str__(self) -> str:
        return f"recall@5 {self.recall_5:.4f}  nDCG@10 {self.ndcg:.4f}  MRR@10 {self.reciprocal_rank:.4f}"


def ranking_scores(rankings: Sequence[Sequence[Hashable]], gains: Sequence[Gains]) -> RankingScores:
    """`rankings`: of each question documents, best first; one that comes again counts where it came first."""
    found = [
        [of.get(str(document), 0.0) for document in list(dict.fromkeys(ranking))[:DEPTH]]
        for ranking, of in zip(rankings, gains, strict=True)
    ]
    best = [sorted(of.values(), reverse=True)[:DEPTH] for of in gains]
    return RankingScores(
        tuple(_discounted(each) / _discounted(most) for each, most in zip(found, best, strict=True)),
        fmean(next((1 / rank for rank, gain in enumerate(each, 1) if gain), 0.0) for each in found),
        fmean(
            sum(gain > 0 for gain in each[:RECALL_DEPTH]) / min(len(of), RECALL_DEPTH)
            for each, of in zip(found, gains, strict=True)
        ),
    )


def _discounted(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def ndcg_difference(first: RankingScores, then: RankingScores) -> tuple[float, float, float]:
    """How much higher `then` is on the same questions, and between which two bounds that is in 95 of 100
    samples of the questions (paired bootstrap)."""
    differences = np.subtract(then.ndcgs, first.ndcgs)
    generator = np.random.default_rng(0)
    size = len(differences)
    means = [differences[generator.integers(0, size, size)].mean() for _ in range(RESAMPLED)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(differences.mean()), float(low), float(high)
