"""As many passages reranked as there is time for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shared.deadline import Deadline
from shared.retrieval.encoders.rerank import Reranked, ScoredTexts, rerank_passages

PASSAGES = ("10", "30", "20", "50", "40", "60")


class SteppedClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_us(self) -> int:
        return int(self.now_s * 1e6)

    def steady_us(self) -> int:
        return int(self.now_s * 1e6)


class Numbers:
    """Each text is scored by the number that it is; batch i takes takes_s[i]."""

    name = "numbers"

    def __init__(self, clock: SteppedClock, takes_s: Sequence[float], weight: float | None) -> None:
        self._clock, self._takes_s, self._weight = clock, iter(takes_s), weight

    def weight(self, question: str) -> float | None:
        assert question == "?"
        return self._weight

    def score_texts(self, question: str, texts: Sequence[str], owner: str = "") -> ScoredTexts:  # noqa: ARG002
        assert question == "?"
        self._clock.now_s += next(self._takes_s)
        return ScoredTexts([float(text) for text in texts], [1] * len(texts), [False] * len(texts))


def rerank(
    *batch_s: float,
    budget_s: float,
    weight: float | None = None,
    found: Sequence[float] = (1.0,) * len(PASSAGES),
) -> Reranked:
    """In batches of two passages."""
    clock = SteppedClock()
    deadline = Deadline.after(budget_s, clock)
    reranker = Numbers(clock, batch_s, weight)
    return rerank_passages(reranker, "?", PASSAGES, found, deadline, batch=2, clock=clock)


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


@pytest.mark.parametrize(
    ("weight", "order"),
    [
        (None, (5, 3, 4, 1, 2, 0)),
        (0.03, (5, 4, 3, 2, 1, 0)),
        (0.01, (4, 5, 2, 3, 1, 0)),
        (0.0, (4, 2, 5, 3, 1, 0)),
    ],
)
def test_scores_count_beside_those_of_the_search_as_much_as_they_weigh(
    weight: float | None, order: tuple[int, ...]
) -> None:
    found = (0.0, 0.1, 0.9, 0.2, 1.0, 0.6)
    assert rerank(0.1, 0.1, 0.1, budget_s=10.0, weight=weight, found=found).order == order


def test_a_reranking_that_nobody_waits_for_ends_after_the_batch_in_hand() -> None:
    clock = SteppedClock()
    wanted = iter((True, False))
    ranked = rerank_passages(
        Numbers(clock, (1.0,), None),
        "?",
        PASSAGES,
        (1.0,) * len(PASSAGES),
        Deadline.after(10.0, clock),
        is_wanted=lambda: next(wanted),
        batch=2,
        clock=clock,
    )
    assert ranked.order == (1, 0, 2, 3, 4, 5)
