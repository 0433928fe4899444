"""A gateway tells of the requests that have ended."""

from __future__ import annotations

from services.gateway.flags.flag_traffic import times_of, traffic_since
from services.gateway.request.model_choice import ModelChoice
from services.gateway.tracing.ended_requests import EndedRequests
from shared.messages import MAX_TRAFFIC_ROWS
from tests.support.records import make_record

BEGAN_US = 1_700_000_000_000_000


def test_requests_since_a_time_are_told_with_what_their_client_asked_for() -> None:
    ended = EndedRequests()
    for number in range(3):
        ended.add(make_record(began_unix_us=BEGAN_US + number, tenant=f"t{number}"))
    ended.add(
        make_record(began_unix_us=BEGAN_US + 3, model_choice=ModelChoice("auto", "large"), flags=("1@a",))
    )
    told = traffic_since(ended, BEGAN_US + 2)
    assert [(row.tenant, row.model, row.flags) for row in told.rows] == [
        ("t2", "test-model", ()),
        ("", "auto", ("1@a",)),
    ]
    assert told.since_unix_us == BEGAN_US + 2


def test_of_more_requests_than_are_kept_it_is_said_since_when_all_are_there() -> None:
    ended = EndedRequests()
    for number in range(MAX_TRAFFIC_ROWS + 1):
        ended.add(make_record(began_unix_us=BEGAN_US + number))
    told = traffic_since(ended, BEGAN_US)
    assert len(told.rows) == MAX_TRAFFIC_ROWS
    assert told.since_unix_us == BEGAN_US + 1 + make_record().total_us


def test_guards_go_by_the_gateway_s_own_clock() -> None:
    times = times_of(make_record(flags=("1@a",), ttft_us=2600, total_us=9100)).times
    assert (times.ttft_ms, times.elapsed_ms, times.tokens, times.outcome) == (2.6, 9.1, 4, "finished")
