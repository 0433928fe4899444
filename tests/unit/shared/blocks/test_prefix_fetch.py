"""When a prefix is fetched rather than computed: the edges of each bound."""

from __future__ import annotations

import math

import pytest

from shared.blocks.prefix_fetch import LEAST_BLOCKS, MARGIN, MAX_FETCH_S, is_worth_fetching

RATE = 160.0
"""Tokens per second: a block takes 0.1 s."""


@pytest.mark.parametrize(("blocks", "fetched"), [(LEAST_BLOCKS - 1, False), (LEAST_BLOCKS, True)])
def test_few_blocks_are_computed(blocks: int, fetched: bool) -> None:
    assert is_worth_fetching(blocks, 0.0, RATE) is fetched


@pytest.mark.parametrize(("share", "fetched"), [(1.0, True), (1.01, False)])
def test_what_is_fetched_is_there_notably_sooner(share: float, fetched: bool) -> None:
    assert is_worth_fetching(10, share * 10 * 0.1 / MARGIN, RATE) is fetched


@pytest.mark.parametrize(("seconds", "fetched"), [(MAX_FETCH_S, True), (MAX_FETCH_S + 0.01, False)])
def test_what_would_not_come_in_time_is_computed(seconds: float, fetched: bool) -> None:
    assert is_worth_fetching(1000, seconds, RATE) is fetched


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_without_a_rate_nothing_is_fetched(rate: float) -> None:
    assert not is_worth_fetching(1000, 0.0, rate)


@pytest.mark.parametrize("seconds", [-0.1, math.inf, math.nan])
def test_a_time_that_is_none_is_not_worth_it(seconds: float) -> None:
    assert not is_worth_fetching(1000, seconds, RATE)
