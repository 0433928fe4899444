"""Comparisons by pairs: what is found, how it is said, and how often chance is taken for a difference."""

from __future__ import annotations

import numpy as np
import pytest

from services.cli.bench.stats import bootstrap
from services.cli.bench.stats.bootstrap import LEAST_PAIRS
from services.cli.bench.stats.comparison import compare_pairs, look_plan


def test_looks_are_ever_further_apart_and_the_last_is_the_last_pair() -> None:
    assert look_plan(40) == [6, 10, 15, 25, 39, 40]
    assert look_plan(LEAST_PAIRS) == [LEAST_PAIRS]


@pytest.mark.parametrize(
    ("factor", "lower_is_better", "word"),
    [(0.8, True, "faster"), (1.2, True, "slower"), (0.8, False, "slower"), (1.2, False, "faster")],
)
def test_a_difference_is_said_in_words(factor: float, lower_is_better: bool, word: str) -> None:
    random = np.random.default_rng(1)
    first = random.uniform(1, 10, 10)
    second = first * factor * np.exp(random.normal(0, 0.02, 10))
    found = compare_pairs(list(first), list(second), looks=5, seed=0)
    said = found.verdict("ttft_p50", lower_is_better=lower_is_better)
    assert found.decided
    assert said.startswith(f"B is {word}: its ttft_p50 is {found.ratio:.3f} of A's, ")
    assert said.endswith("by 10 pairs")


def test_no_difference_is_not_the_same_as_equal() -> None:
    found = compare_pairs([1.0, 2.0, 1.5, 1.2, 1.1, 1.3], [1.1, 1.8, 1.6, 1.1, 1.2, 1.3], looks=3, seed=0)
    assert not found.decided
    assert found.verdict("ttft_p50", lower_is_better=True).startswith("no difference shown at 6 pairs: ")


def test_pairs_that_are_all_alike_decide_nothing() -> None:
    assert not compare_pairs([1.0] * 9, [2.0] * 9, looks=1, seed=0).decided


def test_looking_again_and_again_finds_chance_no_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "RATIO_ROUNDS", 1000)
    random = np.random.default_rng(7)
    looks = look_plan(20)
    found = 0
    for number in range(300):
        first, second = np.exp(random.normal(0, 0.1, (2, 20)))
        found += any(
            compare_pairs(list(first[:pairs]), list(second[:pairs]), len(looks), seed=number).decided
            for pairs in looks
        )
    assert found / 300 <= 0.08
