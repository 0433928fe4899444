"""How good rankings are where each question has one right document."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

DEPTH = 10


@dataclass(frozen=True, slots=True)
class RankingScores:
    """Means over questions, of the first DEPTH documents: nDCG (Järvelin and Kekäläinen 2002, one right
    document each), reciprocal rank, and the share of questions with the right one among the first five."""

    ndcg: float
    reciprocal_rank: float
    recall_5: float

    def __str__(self) -> str:
        return f"recall@5 {self.recall_5:.4f}  nDCG@10 {self.ndcg:.4f}  MRR@10 {self.reciprocal_rank:.4f}"


def ranking_scores(rankings: Sequence[Sequence[Hashable]], right: Sequence[Hashable]) -> RankingScores:
    """`rankings`: of each question documents, best first; one that comes again counts where it came first."""
    ranks = [_rank(ranking, answer) for ranking, answer in zip(rankings, right, strict=True)]
    found = [rank for rank in ranks if rank is not None]
    return RankingScores(
        sum(1 / math.log2(rank + 1) for rank in found) / len(ranks),
        sum(1 / rank for rank in found) / len(ranks),
        sum(rank <= 5 for rank in found) / len(ranks),
    )


def _rank(ranking: Sequence[Hashable], answer: Hashable) -> int | None:
    """From 1; None beyond DEPTH."""
    distinct = list(dict.fromkeys(ranking))[:DEPTH]
    return distinct.index(answer) + 1 if answer in distinct else None
