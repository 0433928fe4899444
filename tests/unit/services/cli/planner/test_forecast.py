"""The forecast of arrivals: level, trend and season, its interval, and gaps."""

from __future__ import annotations

import math
from random import Random

import pytest

from services.cli.planner.arrival_window import ArrivalWindow
from services.cli.planner.forecast import MAX_PENDING, NOBODY_CAME, ArrivalForecast, Forecast
from services.cli.planner.seasons import DAY_SLOTS, SLOT_S, WEEK_SLOTS, Seasons

SPAN_S = 10.0
DAY_S = 86_400.0


def window(ended_s: float, rate: float, span_s: float = SPAN_S) -> ArrivalWindow:
    return ArrivalWindow(ended_s, span_s, rate * span_s)


def daily(at_s: float) -> float:
    return 5.0 - 4.0 * math.cos(2 * math.pi * at_s / DAY_S)


def test_nobody_came_before_anything_was_seen() -> None:
    assert ArrivalForecast(60.0).at(60.0) is NOBODY_CAME


def test_what_comes_steadily_goes_on_so() -> None:
    forecast = ArrivalForecast(60.0)
    for number in range(1, 60):
        forecast.add(window(number * SPAN_S, 3.0))
    found = forecast.at(60.0)
    assert found.rate == pytest.approx(3.0)
    assert found.low == found.high == pytest.approx(3.0), "it was never wrong"


def test_a_slope_is_followed_and_dies_away() -> None:
    forecast = ArrivalForecast(60.0)
    for number in range(1, 60):
        forecast.add(window(number * SPAN_S, 0.1 * number))
    near, far = forecast.at(30.0), forecast.at(600.0)
    assert near.way == "trend"
    assert 5.9 < near.rate < far.rate < 5.9 + 0.01 * 600


def test_the_interval_is_as_wide_as_the_forecast_was_wrong_and_not_as_counting_is() -> None:
    random, counted, uneven = Random(1), ArrivalForecast(60.0), ArrivalForecast(60.0)
    for number in range(1, 300):
        came = sum(random.expovariate(1.0) < 1.0 for _ in range(63))  # about 40 of 63, less even than Poisson
        counted.add(ArrivalWindow(number * SPAN_S, SPAN_S, came))
        uneven.add(window(number * SPAN_S, 1.0 if (number // 20) % 2 else 7.0))
    assert counted.at(60.0).high < 1.3 * counted.at(60.0).rate
    assert uneven.at(60.0).high > uneven.at(60.0).rate + 4.0


def test_a_day_that_is_as_the_day_before_is_told_by_the_season() -> None:
    forecast, at_s, told = ArrivalForecast(1800.0), 0.0, []
    while at_s < 2.3 * DAY_S:
        at_s += 60.0
        forecast.add(window(at_s, daily(at_s), 60.0))
        if at_s > 2 * DAY_S:
            told.append(abs(forecast.at(1800.0).rate / daily(at_s + 1800.0) - 1))
    assert forecast.at(1800.0).way == "season"
    assert sum(told) / len(told) < 0.05


def test_behind_a_gap_the_level_begins_anew() -> None:
    forecast = ArrivalForecast(60.0)
    for number in range(1, 30):
        forecast.add(window(number * SPAN_S, float(number)))
    forecast.add(window(3000.0, 2.0))
    assert forecast.at(60.0).rate == 2.0


def test_memory_is_bounded_however_late_forecasts_fall_due() -> None:
    forecast = ArrivalForecast(1e9)
    for number in range(1, MAX_PENDING + 50):
        forecast.add(window(number * SPAN_S, 1.0))
    assert len(forecast._pending) == MAX_PENDING
    seasons = Seasons()
    for slot in range(3 * WEEK_SLOTS):
        seasons.add(window((slot + 1) * SLOT_S, 1.0, SLOT_S))
    assert {kind: len(means) for kind, means in seasons.means.items()} == {
        "week": WEEK_SLOTS,
        "day": DAY_SLOTS,
    }


def test_what_was_hardly_seen_is_not_usual_and_a_weekday_counts_before_any_day() -> None:
    seasons = Seasons()
    seasons.add(window(10.0, 9.0))  # a moment of a quarter of an hour
    for slot in range(1, WEEK_SLOTS + 2):
        weekend = slot // DAY_SLOTS >= 5
        seasons.add(window((slot + 1) * SLOT_S, 1.0 if weekend else 5.0, SLOT_S))
    assert Seasons().usual(0.0) is None
    assert seasons.usual(7 * DAY_S + 12 * 3600) == 5.0
    assert seasons.usual(5 * DAY_S + 12 * 3600) == 1.0


def test_a_forecast_says_how_it_was_made() -> None:
    assert Forecast(3.0, 1.5, 4.25, "trend").words == "3 requests/s (1.5 to 4.25, by trend)"
