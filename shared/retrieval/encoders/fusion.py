"""Rankings made one by their scores (Bruch, Gai and Ingber 2023, arXiv:2210.11934).

Of all that any ranking has found, the lowest score of a ranking counts 0 and the highest 1, times what the
ranking is worth for this question. By ranks alone (reciprocal rank fusion, Cormack, Clarke and Büttcher 2009)
a ranking that knows little disturbs one that knows much (`bench_retrieval`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHARE_WEIGHT = 0.4
"""Weight of the share of a question's words that a passage has, beside its fused score."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Rows of passages, best first, each once, with their scores, higher for better ones; a row that it does
    not have scores 0. `weight` is what this ranking is worth beside others."""

    rows: Sequence[int]
    scores: Sequence[float]
    weight: float = 1.0


def fuse_rankings(rankings: Sequence[Ranking], k: int) -> list[tuple[int, float]]:
    """The best k rows of all rankings with their scores, best first: 1 for what all of them have first, 0 for
    what all of them have last. Equal ones are in the order of the rankings."""
    rows = list(dict.fromkeys(row for ranking in rankings for row in ranking.rows))
    fused = dict.fromkeys(rows, 0.0)
    total = 0.0
    for ranking in rankings:
        found = dict(zip(ranking.rows, ranking.scores, strict=True))
        scores = [found.get(row, 0.0) for row in rows]
        if not any(score > 0 for score in scores) or ranking.weight <= 0:
            continue
        total += ranking.weight
        for row, share in zip(rows, spread(scores), strict=True):
            fused[row] += ranking.weight * share
    ordered = sorted(rows, key=lambda row: -fused[row])[:k]
    return [(row, fused[row] / total if total else 0.0) for row in ordered]


def add_shares(fused: Sequence[tuple[int, float]], shares: Sequence[float]) -> list[tuple[int, float]]:
    """Let the share of the question's words that each of the rows has count beside its fused score; best
    first, from 0 to 1."""
    scored = [
        (row, (score + SHARE_WEIGHT * share) / (1 + SHARE_WEIGHT))
        for (row, score), share in zip(fused, shares, strict=True)
    ]
    return sorted(scored, key=lambda each: -each[1])


def spread(scores: Sequence[float]) -> list[float]:
    """Spread scores from 0 for the lowest to 1 for the highest, so that scores of two kinds can be added;
    equal ones are all 1."""
    low, high = min(scores), max(scores)
    return [(score - low) / (high - low) if high > low else 1.0 for score in scores]
