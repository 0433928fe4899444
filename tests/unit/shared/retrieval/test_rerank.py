"""As many passages reranked as there is time for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shared.deadline import Deadline
from shared.retrieval.rerank import Reranked, rerank_in_batches

PASSAGES = ("10", "30", "20", "50", "40", "60")


class SteppedClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_us(self) -> int:
        return int(self.now_s * 1e6)


def rerank(*batch_s: float, budget_s: float) -> Reranked:
    """Batches of two passages, each scored by the number that it is; batch i takes batch_s[i]."""
    clock = SteppedClock()
    takes = iter(batch_s)

    def score(passages: Sequence[str]) -> list[float]:
        clock.now_s += next(takes)
        return [float(passage) for passage in passages]

    deadline = Deadline.after(budget_s, clock)
    return rerank_in_batches(score, PASSAGES, deadline, batch=2, clock=clock)


def test_with_time_for_all_the_best_comes_first() -> None:
    ranked = rerank(1.0, 1.0, 1.0, budget_s=10.0)
    assert ranked.order == (5, 3, 4, 1, 2, 0)
    assert ranked.scores == (60.0, 50.0, 40.0, 30.0, 20.0, 10.0)
    assert ranked.whole


@pytest.mark.parametrize(
    ("batch_s", "budget_s", "order"),
    [
        ((1.0, 1.0), 2.9, (3, 1, 2, 0, 4, 5)),  # the third would end at 3.0
        ((1.0, 0.5), 2.4, (3, 1, 2, 0, 4, 5)),  # it may be as slow as the slowest
        ((5.0,), 2.0, (1, 0, 2, 3, 4, 5)),  # nobody knew
    ],
)
def test_a_batch_that_would_end_too_late_is_not_begun_and_its_passages_stay_behind(
    batch_s: tuple[float, ...], budget_s: float, order: tuple[int, ...]
) -> None:
    ranked = rerank(*batch_s, budget_s=budget_s)
    assert ranked.order == order
    assert not ranked.whole


def test_without_any_time_all_stay_as_they_came() -> None:
    assert rerank(budget_s=0.0) == Reranked((0, 1, 2, 3, 4, 5), ())
