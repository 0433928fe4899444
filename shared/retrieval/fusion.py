"""Rankings made one by their scores (Bruch, Gai and Ingber 2023, arXiv:2210.11934).

A score counts as a share of the best one in its ranking, times what the ranking is worth for this question.
By ranks alone (reciprocal rank fusion, Cormack, Clarke and Büttcher 2009) a ranking that knows little
disturbs one that knows much: with the same weights nDCG@10 of XQuAD's German questions is 0.930, by words
alone 0.960, and by scores 0.961 (`bench_retrieval`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ranking:
    """Rows of passages, best first, each once, with their scores, higher for better ones. What has none above
    0 says nothing. `weight` is what this ranking is worth beside others."""

    rows: Sequence[int]
    scores: Sequence[float]
    weight: float = 1.0


def fuse_rankings(rankings: Sequence[Ranking], k: int) -> list[tuple[int, float]]:
    """The best k rows of all rankings with their scores, best first: 1 for what all of them have first, 0 for
    what none says anything of. Equal ones are in the order of the rankings."""
    fused: dict[int, float] = {}
    total = sum(ranking.weight for ranking in rankings if ranking.rows and ranking.scores[0] > 0)
    for ranking in rankings:
        best = ranking.scores[0] if ranking.rows else 0.0
        for row, score in zip(ranking.rows, ranking.scores, strict=True):
            share = ranking.weight * max(score, 0.0) / (best * total) if best > 0 and total > 0 else 0.0
            fused[row] = fused.get(row, 0.0) + share
    ordered = sorted(fused, key=lambda row: -fused[row])[:k]
    return [(row, fused[row]) for row in ordered]
