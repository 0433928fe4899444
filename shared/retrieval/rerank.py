"""Passages in a better order: the seam of all that can tell how well a passage answers, and its budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.deadline import SYSTEM_CLOCK, Clock, Deadline

MAX_RERANKED = 256
"""Passages of one question."""
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

    def score_texts(self, question: str, texts: Sequence[str]) -> ScoredTexts:
        """Scores of one question may be compared, whichever calls they come from."""
        ...

    def rerank(self, question: str, passages: Sequence[str], deadline: Deadline) -> Reranked:
        """The best order that can be had before `deadline` of at most MAX_RERANKED passages, which come best
        first: those that there is no time for are at its end."""
        ...


def rerank_in_batches(
    score: Callable[[Sequence[str]], Sequence[float]],
    passages: Sequence[str],
    deadline: Deadline,
    *,
    batch: int = BATCH_PASSAGES,
    clock: Clock = SYSTEM_CLOCK,
) -> Reranked:
    """Begins another batch while one as slow as the slowest so far would end in time. Equal scores: the
    earlier passage first."""
    scores: list[float] = []
    slowest_s = 0.0
    while len(scores) < len(passages) and slowest_s < (left_s := deadline.remaining_s(clock)):
        scores += score(passages[len(scores) : len(scores) + batch])
        slowest_s = max(slowest_s, left_s - deadline.remaining_s(clock))
    best = sorted(range(len(scores)), key=lambda place: -scores[place])
    return Reranked((*best, *range(len(scores), len(passages))), tuple(scores[place] for place in best))
