"""Guards watch the requests that have their change: those that run, and those of the last minute."""

from __future__ import annotations

from services.gateway.flags import flag_guards
from services.gateway.flags.flag_guards import WINDOW_S, FlaggedTimes, FlagGuards
from shared.flags.guard import RequestTimes
from tests.support.clock import FakeClock
from tests.support.flag_changes import flag_change

GUARDED = flag_change(1, guard="p99_ttft<300ms,errors<1%")
ITS = (GUARDED.version,)
FAILED = FlaggedTimes(ITS, RequestTimes(5.0, None, 0, "failed"))
WAITS = FlaggedTimes(ITS, RequestTimes(301.0, None, 0))
OF_ANOTHER = FlaggedTimes(("2@gateway-0",), RequestTimes(5.0, None, 0, "failed"))


def guards() -> tuple[FlagGuards, FakeClock]:
    clock = FakeClock()
    made = FlagGuards(clock)
    made.put([GUARDED, flag_change(2)])
    return made, clock


def test_requests_that_ended_burn_the_guard_of_their_change_for_a_minute() -> None:
    made, clock = guards()
    for _ in range(3):
        made.record_end(OF_ANOTHER)
    made.record_end(FAILED)
    assert made.burning([]) == {}
    made.record_end(FAILED)
    assert made.burning([]) == {"1@gateway-0": "errors<1% burns: 2 of 2 requests of the last 60 s"}
    clock.advance(WINDOW_S + 0.1)
    assert made.burning([]) == {}


def test_a_request_that_still_waits_counts() -> None:
    made, _ = guards()
    assert made.burning([WAITS, WAITS]) == {
        "1@gateway-0": "p99_ttft<300ms burns: 2 of 2 requests of the last 60 s"
    }


def test_what_is_rolled_back_is_watched_no_more() -> None:
    made, _ = guards()
    made.put([flag_change(2)])
    made.record_end(FAILED)
    assert not made.watches
    assert made.burning([WAITS, WAITS]) == {}


def test_a_guard_that_is_not_understood_guards_nothing() -> None:
    made, _ = guards()
    made.put([flag_change(3, guard="p99_joy>1")])
    assert not made.watches


def test_the_latest_requests_count() -> None:
    made, _ = guards()
    made.record_end(FAILED)
    made.record_end(FAILED)
    for _ in range(flag_guards.MAX_WATCHED):
        made.record_end(FlaggedTimes(ITS, RequestTimes(5.0, 1.0, 1, "finished")))
    assert made.burning([]) == {}
