"""Passages in a better order: the seam of all that can tell how well a passage answers, and its budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.deadline import SYSTEM_CLOCK, Clock, Deadline

BATCH_PASSAGES = 8
"""Scored between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class Reranked:
    """`order` has the places of all passages: first those with `scores`, best first, then the others as they
    came. `whole`: no passage is without one."""

    order: tuple[int, ...]
    scores: tuple[float, ...]

    @property
    def whole(self) -> bool:
        return len(self.scores) == len(self.order)


@dataclass(frozen=True, slots=True)
class ScoredTexts:
    """Columns of equal length, one row for each text: how well it answers, the higher the better; how many
    tokens of the question and of it were read; whether one of the two was longer than that."""

    scores: list[float]
    tokens: list[int]
    truncated: list[bool]


class Reranker(Protocol):
    @property
    def name(self) -> str: ...

    def weight(self, question: str) -> float | None:
        """Return what one of its scores counts beside one of the search, which is from 0 to 1; None where
        its scores count alone."""
        ...

    def score_texts(self, question: str, texts: Sequence[str], owner: str = "") -> ScoredTexts:
        """Scores of one question may be compared, whichever calls they come from. `owner`: whose the texts
        are, where something is kept of them."""
        ...


def rerank_passages(
    reranker: Reranker,
    question: str,
    passages: Sequence[str],
    found: Sequence[float],
    deadline: Deadline,
    *,
    owner: str = "",
    is_wanted: Callable[[], bool] = lambda: True,
    batch: int = BATCH_PASSAGES,
    clock: Clock = SYSTEM_CLOCK,
) -> Reranked:
    """The best order that can be had before `deadline` of passages that a search has `found` with these
    scores, best first.

    Begins another batch while one as slow as the slowest so far would end in time, and somebody waits. Equal
    scores: the earlier passage first.
    """
    scores: list[float] = []
    slowest_s = 0.0
    while len(scores) < len(passages) and slowest_s < (left_s := deadline.remaining_s(clock)) and is_wanted():
        scores += reranker.score_texts(question, passages[len(scores) : len(scores) + batch], owner).scores
        slowest_s = max(slowest_s, left_s - deadline.remaining_s(clock))
    weight = reranker.weight(question) if scores else None
    if weight is not None:
        scores = [of_search + weight * score for score, of_search in zip(scores, found, strict=False)]
    best = sorted(range(len(scores)), key=lambda place: -scores[place])
    return Reranked((*best, *range(len(scores), len(passages))), tuple(scores[place] for place in best))
