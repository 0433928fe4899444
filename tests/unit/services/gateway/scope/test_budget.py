"""The deadlines of a request: the earliest of what was asked, configured and left of the call."""

from __future__ import annotations

import pytest

from services.gateway.config import GatewayConfig
from services.gateway.scope.budget import Budget
from tests.support.clock import FakeClock
from tests.support.text_request import text_request


def seconds(budget: Budget, clock: FakeClock) -> tuple[float, float]:
    return round(budget.first_token.remaining_s(clock), 3), round(budget.total.remaining_s(clock), 3)


CONFIG = GatewayConfig(default_deadline_s=100.0, default_ttft_deadline_s=50.0)


@pytest.mark.parametrize(
    ("fields", "call_s", "expected"),
    [
        ({}, None, (50.0, 100.0)),
        ({"deadline_ms": 10_000}, None, (10.0, 10.0)),
        ({"deadline_ms": 200_000}, None, (50.0, 200.0)),
        ({"ttft_deadline_ms": 3000}, None, (3.0, 100.0)),
        ({"ttft_deadline_ms": 30_000, "deadline_ms": 20_000}, None, (20.0, 20.0)),
        ({"deadline_ms": 10_000}, 5.0, (4.9, 4.9)),
        ({"deadline_ms": 4000}, 5.0, (4.0, 4.0)),
        ({}, 500.0, (50.0, 499.9)),
        ({}, 0.04, (0.03, 0.03)),
    ],
)
def test_the_earliest_deadline_wins(
    fields: dict[str, int], call_s: float | None, expected: tuple[float, float]
) -> None:
    clock = FakeClock()
    assert seconds(Budget.of(text_request(**fields), CONFIG, call_s, clock), clock) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"deadline_ms": 10_000}, 10.0),
        ({"deadline_ms": 10_000, "inter_token_deadline_ms": 500}, 4.525),
        ({"deadline_ms": 10_000, "inter_token_deadline_ms": 8000}, 10.0),
    ],
)
def test_the_next_token_is_due_its_time_after_the_last_or_at_the_end(
    fields: dict[str, int], expected: float
) -> None:
    clock = FakeClock(1000.0)
    budget = Budget.of(text_request(**fields), CONFIG, None, clock)
    assert round(budget.next_token(1004.0).at_s - 1000.0, 3) == expected


@pytest.mark.parametrize(
    ("fields", "call_s", "expected"),
    [
        ({}, None, (47.0, 97.0)),
        ({"deadline_ms": 10_000}, None, (7.0, 7.0)),
        ({"ttft_deadline_ms": 3000}, None, (0.0, 97.0)),
        ({"deadline_ms": 10_000}, 5.0, (4.9, 4.9)),  # gRPC has counted from the arrival on by itself
    ],
)
def test_deadlines_count_from_the_arrival_of_the_call(
    fields: dict[str, int], call_s: float | None, expected: tuple[float, float]
) -> None:
    clock = FakeClock(1000.0)
    budget = Budget.of(text_request(**fields), CONFIG, call_s, clock, arrived_s=997.0)
    assert seconds(budget, clock) == expected
    assert budget.first_token_s == pytest.approx(expected[0])
    assert budget.arrived_s == 997.0
