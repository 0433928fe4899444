"""Scores of several rankings made one."""

from __future__ import annotations

import pytest

from shared.retrieval.encoders.fusion import Ranking, add_shares, fuse_rankings, spread


def test_what_all_rankings_have_first_scores_1_and_what_all_have_last_0() -> None:
    fused = fuse_rankings([Ranking([7, 8, 9], [0.5, 0.4, 0.3], 0.3), Ranking([7, 9], [12.0, 3.0])], 10)
    assert fused[0][0] == 7
    assert fused[0][1] == pytest.approx(1.0)
    fused = fuse_rankings([Ranking([7, 8, 9], [0.5, 0.4, 0.3]), Ranking([8, 7], [12.0, 3.0])], 10)
    assert fused[-1] == (9, 0.0)


def test_scores_are_spread_from_0_to_1_times_the_rankings_weight() -> None:
    fused = dict(fuse_rankings([Ranking([1, 2, 3], [0.8, 0.5, 0.4], 3.0), Ranking([2, 3], [10.0, 5.0])], 10))
    expected = {1: 3.0, 2: 3.0 * 0.25 + 1.0, 3: 0.5}
    assert fused == pytest.approx({row: score / 4 for row, score in expected.items()})


def test_a_ranking_of_no_weight_adds_rows_behind_all_others() -> None:
    fused = fuse_rankings([Ranking([1, 2], [0.9, 0.8], 0.0), Ranking([3, 2], [4.0, 1.0])], 10)
    assert [row for row, _ in fused] == [3, 2, 1]


@pytest.mark.parametrize("silent", [Ranking([], []), Ranking([4, 5], [0.0, -0.2])], ids=["empty", "below-0"])
def test_a_ranking_that_says_nothing_does_not_count(silent: Ranking) -> None:
    assert fuse_rankings([silent, Ranking([1], [2.0])], 1) == [(1, 1.0)]


def test_no_more_than_k_rows_come_and_equal_ones_in_the_order_of_the_rankings() -> None:
    fused = fuse_rankings([Ranking([5], [1.0]), Ranking([2], [1.0]), Ranking([9], [1.0])], 2)
    assert [row for row, _ in fused] == [5, 2]


def test_the_share_of_the_words_counts_beside_the_score_and_equal_ones_stay_as_they_came() -> None:
    added = add_shares([(7, 1.0), (8, 0.9), (9, 0.5), (4, 0.1)], [0.0, 0.3, 0.0, 1.0])
    assert [row for row, _ in added] == [8, 7, 9, 4]
    assert [score for _, score in added] == pytest.approx([1.02 / 1.4, 1.0 / 1.4, 0.5 / 1.4, 0.5 / 1.4])
    assert add_shares([(1, 1.0)], [1.0])[0][1] == pytest.approx(1.0)
    assert add_shares([], []) == []


@pytest.mark.parametrize(
    ("scores", "shares"), [([2.0, 4.0, 3.0], [0.0, 1.0, 0.5]), ([0.5, 0.5], [1.0, 1.0]), ([7.0], [1.0])]
)
def test_the_lowest_score_counts_0_and_the_highest_1(scores: list[float], shares: list[float]) -> None:
    assert spread(scores) == shares
