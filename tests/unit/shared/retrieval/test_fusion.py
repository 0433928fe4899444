"""Scores of several rankings made one."""

from __future__ import annotations

import pytest

from shared.retrieval.fusion import Ranking, fuse_rankings


def test_what_all_rankings_have_first_scores_1() -> None:
    row, score = fuse_rankings([Ranking([7, 8], [0.5, 0.4], 0.3), Ranking([7, 9], [12.0, 3.0])], 10)[0]
    assert (row, round(score, 6)) == (7, 1.0)


def test_a_score_counts_as_share_of_its_rankings_best_times_its_weight() -> None:
    fused = dict(fuse_rankings([Ranking([1, 2], [0.8, 0.4], 0.5), Ranking([2, 3], [10.0, 5.0])], 10))
    expected = {1: 0.5, 2: 0.5 * 0.5 + 1.0, 3: 0.5}
    assert fused == pytest.approx({row: score / 1.5 for row, score in expected.items()})


def test_a_ranking_of_no_weight_adds_rows_behind_all_others() -> None:
    fused = fuse_rankings([Ranking([1, 2], [0.9, 0.8], 0.0), Ranking([3, 2], [4.0, 1.0])], 10)
    assert [row for row, _ in fused] == [3, 2, 1]


@pytest.mark.parametrize("silent", [Ranking([], []), Ranking([4, 5], [0.0, -0.2])], ids=["empty", "below-0"])
def test_a_ranking_that_says_nothing_does_not_count(silent: Ranking) -> None:
    assert fuse_rankings([silent, Ranking([1], [2.0])], 1) == [(1, 1.0)]


def test_no_more_than_k_rows_come_and_equal_ones_in_the_order_of_the_rankings() -> None:
    fused = fuse_rankings([Ranking([5], [1.0]), Ranking([2], [1.0]), Ranking([9], [1.0])], 2)
    assert [row for row, _ in fused] == [5, 2]
