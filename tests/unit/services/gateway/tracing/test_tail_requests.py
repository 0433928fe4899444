"""The worst requests of the last minutes stay, whatever ends after them, within bounds."""

from __future__ import annotations

from services.gateway.scope.recent_latencies import SLOT_S, SLOTS
from services.gateway.scope.request_record import RequestRecord
from services.gateway.tracing.ended_requests import MAX_ENDED_REQUESTS, EndedRequests
from services.gateway.tracing.tail_requests import MAX_SLOT_FAILURES, MAX_SLOT_SLOW, TailRequests
from tests.support.clock import FakeClock
from tests.support.records import make_record

RATE_PER_S = 1000
FAST = make_record(request_id="fast")


def failed(request_id: str, code: str = "unavailable", hop: str = "decode") -> RequestRecord:
    return make_record(request_id=request_id, outcome="failed", finish="", error=code, hop=hop)


def ids(records: object) -> list[str]:
    return [record.request_id for record in records]  # type: ignore[attr-defined]  # records, in any order


def pass_s(ended: EndedRequests, clock: FakeClock, seconds: int) -> None:
    """Let requests end at a thousand a second, all alike."""
    for _ in range(seconds * RATE_PER_S):
        ended.add(FAST)
        clock.advance(1 / RATE_PER_S)


def test_a_slow_and_a_failed_request_outlast_a_thousand_others_a_second() -> None:
    clock = FakeClock()
    ended = EndedRequests(clock=clock)
    ended.add(make_record(request_id="late", ttft_us=3_000_000))
    ended.add(make_record(request_id="long", total_us=60_000_000))
    ended.add(failed("lost"))
    pass_s(ended, clock, 12)
    assert ended.kept == MAX_ENDED_REQUESTS
    assert set(ids(ended.latest(MAX_ENDED_REQUESTS))) == {"fast"}
    assert ids(ended.tail.slowest_starts(1)) == ["late"]
    assert ids(ended.tail.slowest(1)) == ["long"]
    assert ids(ended.tail.failed(9)) == ["lost"]
    assert [name for name in ("late", "long", "lost", "never") if ended.find(name)] == [
        "late",
        "long",
        "lost",
    ]


def test_the_tail_has_a_bound_at_any_rate_and_for_any_time() -> None:
    clock = FakeClock()
    tail = TailRequests(clock)
    most = SLOTS * (MAX_SLOT_FAILURES + 2 * MAX_SLOT_SLOW)
    for slot in range(SLOTS + 3):
        for number in range(20):
            tail.add(make_record(request_id=f"{slot}.{number}", ttft_us=number, total_us=number))
            tail.add(failed(f"{slot}.{number}f", code=f"error-{number}"))
        clock.advance(SLOT_S)
    assert len(list(tail)) == most
    # The slot that has just begun is one of the last ones too.
    assert len(tail.failed(10_000)) == (SLOTS - 1) * MAX_SLOT_FAILURES
    assert len(tail.slowest(10_000)) == (SLOTS - 1) * MAX_SLOT_SLOW


def test_each_slot_has_its_slowest_ones_and_one_failure_of_each_kind() -> None:
    tail = TailRequests(FakeClock())
    for number in range(MAX_SLOT_SLOW + 1):
        tail.add(make_record(request_id=f"up-{number}", ttft_us=number, total_us=100 - number))
    for number in range(MAX_SLOT_FAILURES + 1):
        tail.add(failed(f"first-{number}", code=str(number)))
        tail.add(failed(f"again-{number}", code=str(number)))
    up = [f"up-{number}" for number in range(MAX_SLOT_SLOW + 1)]
    assert ids(tail.slowest_starts(99)) == up[:0:-1]
    assert ids(tail.slowest(99)) == up[:-1]
    assert ids(tail.failed(99)) == [f"first-{number}" for number in range(MAX_SLOT_FAILURES)][::-1]
    assert ids(tail.failed(2)) == ["first-3", "first-2"]


def test_a_request_without_a_token_is_slow_in_all_alone() -> None:
    tail = TailRequests(FakeClock())
    tail.add(make_record(request_id="empty", ttft_us=None))
    assert ids(tail.slowest_starts(9)) == []
    assert ids(tail.slowest(9)) == ["empty"]


def test_what_is_older_than_five_minutes_is_shown_no_more() -> None:
    clock = FakeClock()
    tail = TailRequests(clock)
    tail.add(failed("old"))
    clock.advance(SLOT_S * (SLOTS - 1))
    assert ids(tail.failed(9)) == ["old"]
    clock.advance(SLOT_S)
    assert ids(tail.failed(9)) == []
