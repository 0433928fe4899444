"""What a prefix is predicted to cost of another worker, by what the last ones took."""

from __future__ import annotations

import math

import pytest

from services.prefill.fetch_price import (
    FAILED_S,
    FIRST_ANSWER_S,
    FIRST_BYTES_PER_S,
    MEMORY,
    RATED_BYTES,
    REMEMBERED_S,
    FetchPrices,
    LenderSpeed,
)
from tests.support.clock import FakeClock

LENDER, BYTES = "prefill-1", 4 * RATED_BYTES
FIRST_S = FIRST_ANSWER_S + BYTES / FIRST_BYTES_PER_S


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def prices(clock: FakeClock) -> FetchPrices:
    return FetchPrices(clock)


def test_a_lender_that_was_never_asked_is_thought_to_be_of_the_usual_speed(prices: FetchPrices) -> None:
    assert prices.predicted_s(LENDER, BYTES) == pytest.approx(FIRST_S)


def test_a_lender_costs_what_it_took(prices: FetchPrices) -> None:
    prices.observe(LENDER, 0.1, BYTES, 0.2)
    assert prices.predicted_s(LENDER, BYTES) == pytest.approx(0.3)
    assert prices.predicted_s(LENDER, 2 * BYTES) == pytest.approx(0.5)
    prices.observe(LENDER, 0.2, BYTES, 0.2)
    assert prices.predicted_s(LENDER, BYTES) == pytest.approx(0.3 + (1 - MEMORY) * 0.1)


def test_one_that_was_not_asked_costs_what_others_took_lately_and_then_what_it_takes(
    prices: FetchPrices,
) -> None:
    prices.observe(LENDER, 0.1, BYTES, 0.2)
    prices.observe("prefill-2", 0.2, BYTES, 0.2)
    usual = prices.usual()
    assert usual is not None
    assert usual.answer_s == pytest.approx(0.1 + (1 - MEMORY) * 0.1)
    assert prices.predicted_s("prefill-3", BYTES) == pytest.approx(usual.predicted_s(BYTES))
    assert prices.predicted_s("prefill-2", BYTES) == pytest.approx(0.4)


def test_the_usual_price_is_told_but_for_a_while_after_a_failure(
    prices: FetchPrices, clock: FakeClock
) -> None:
    assert prices.usual() == LenderSpeed()
    prices.observe_failure(LENDER)
    assert prices.usual() is None
    clock.advance(FAILED_S + 0.1)
    assert prices.usual() == LenderSpeed()


def test_few_bytes_say_how_soon_a_lender_answers_and_nothing_of_its_speed(prices: FetchPrices) -> None:
    prices.observe(LENDER, 0.1, RATED_BYTES - 1, 0.2)
    assert prices.predicted_s(LENDER, BYTES) == pytest.approx(0.3 + BYTES / FIRST_BYTES_PER_S)


def test_a_lender_that_failed_is_not_asked_for_a_while(prices: FetchPrices, clock: FakeClock) -> None:
    prices.observe_failure(LENDER)
    clock.advance(FAILED_S - 0.1)
    assert prices.predicted_s(LENDER, BYTES) == math.inf
    clock.advance(0.2)
    assert prices.predicted_s(LENDER, BYTES) == pytest.approx(FIRST_S)


def test_a_lender_that_was_slow_is_tried_again_in_the_end(prices: FetchPrices, clock: FakeClock) -> None:
    prices.observe(LENDER, 10.0, BYTES, 10.0)
    clock.advance(REMEMBERED_S + 0.1)
    assert prices.predicted_s(LENDER, BYTES) == pytest.approx(FIRST_S)
