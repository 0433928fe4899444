"""The deadlines of a request: the earliest of what was asked, configured and left of the call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.config import GatewayConfig
from services.gateway.request.resume_token import ResumeClaim, StreamThinking
from services.gateway.scope.budget import (
    END_S,
    GRPC_MARGIN_S,
    GRPC_MARGIN_SHARE,
    MAX_GRPC_MARGIN_S,
    Budget,
    answerable_s,
)
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


def test_the_thinking_of_a_stream_that_is_gone_on_with_is_closed_when_it_was_to_be() -> None:
    clock = FakeClock()
    asked = text_request(thinking=pb.Thinking(deadline_ms=5000))
    now_us = clock.unix_us()
    thinking = StreamThinking(until_unix_us=now_us + 1_500_000)
    claim = ResumeClaim("a.b", "a.b", now_us, 0, 3, thinking=thinking)
    budgets = [Budget.of(each, CONFIG, None, clock) for each in (asked, replace(asked, resumed=claim))]
    assert [each.thinking and each.thinking.remaining_s(clock) for each in budgets] == [
        pytest.approx(5.0),
        pytest.approx(1.5),
    ]


SESSIONS = 256
"""As many as a gateway has by default."""


@pytest.mark.parametrize("deadline_s", [2.0, 10.0, 60.0])
@pytest.mark.parametrize("others", [0, 50, 2000])
def test_the_ends_of_requests_that_expire_together_all_come_before_grpcs_own(
    deadline_s: float, others: int
) -> None:
    """The gateway ends one after another, each in its time: the last of them is still in time."""
    clock = FakeClock()
    budgets = [
        Budget.of(text_request(), CONFIG, deadline_s, clock, live=others + number)
        for number in range(SESSIONS)
    ]
    done_s = 0.0
    for ends_s in sorted(budget.total.remaining_s(clock) for budget in budgets):
        done_s = max(done_s, ends_s) + END_S
    assert done_s <= deadline_s - END_S
    assert min(budget.total.remaining_s(clock) for budget in budgets) >= deadline_s - MAX_GRPC_MARGIN_S


@pytest.mark.parametrize(
    ("live", "margin_s"),
    [
        (0, GRPC_MARGIN_S),
        (1, GRPC_MARGIN_S + END_S),
        (400, MAX_GRPC_MARGIN_S),
        (401, MAX_GRPC_MARGIN_S),
        (10**9, MAX_GRPC_MARGIN_S),
    ],
)
def test_the_margin_grows_with_the_live_requests_to_its_limit(live: int, margin_s: float) -> None:
    assert 10.0 - answerable_s(10.0, live) == pytest.approx(margin_s)
    assert answerable_s(0.1, live) == pytest.approx(0.1 * (1 - GRPC_MARGIN_SHARE))
