"""The last requests are kept within bounds, whatever the rate, and all of them are counted."""

from __future__ import annotations

from services.gateway.fleet.routing import RoutingDecision
from services.gateway.scope.outcome import Outcome
from services.gateway.scope.recent_requests import (
    KEPT_PER_S,
    MAX_ERROR_CHARS,
    MAX_KEPT_PHASES,
    MAX_KEPT_REQUESTS,
    RecentRequests,
)
from services.gateway.scope.request_timeline import RequestTimeline
from services.gateway.scope.session_state import SessionState
from shared.errors import Unavailable
from tests.support.clock import FakeClock


def record(recent: RecentRequests, clock: FakeClock, request_id: str, outcome: Outcome | None = None) -> None:
    timeline = RequestTimeline(0, clock)
    for _ in range(MAX_KEPT_PHASES + 1):
        clock.advance(0.0001)
        timeline.mark_phase("route")
    state = SessionState(8)
    state.begin_epoch(RoutingDecision("decode-0", "", "detokenizer-0", ""))
    recent.record_end(request_id, "tenant", outcome or Outcome.finished("stop"), state, timeline)


def test_a_second_keeps_so_many_and_counts_the_rest() -> None:
    clock = FakeClock()
    recent = RecentRequests(clock)
    for number in range(KEPT_PER_S + 3):
        record(recent, clock, str(number))
    assert len(recent.newest(1000)) == KEPT_PER_S
    assert recent.left_out == 3
    assert sum(slot.outcomes.total() for slot in recent.latencies.slots()) == KEPT_PER_S + 3
    clock.advance(1.0)
    record(recent, clock, "later")
    assert recent.newest(1)[0].request_id == "later"


def test_the_newest_ones_are_kept_and_the_newest_comes_first() -> None:
    clock = FakeClock()
    recent = RecentRequests(clock)
    for number in range(MAX_KEPT_REQUESTS + 5):
        record(recent, clock, str(number))
        clock.advance(1.0)
    kept = [summary.request_id for summary in recent.newest(MAX_KEPT_REQUESTS + 5)]
    assert kept == [str(number) for number in range(MAX_KEPT_REQUESTS + 4, 4, -1)]
    assert [summary.request_id for summary in recent.newest(2)] == kept[:2]


def test_a_request_has_its_route_and_no_more_phases_or_words_than_are_kept() -> None:
    clock = FakeClock()
    recent = RecentRequests(clock)
    record(recent, clock, "a", Outcome.of(Unavailable("x" * 1000, hop="decode")))
    (summary,) = recent.newest(9)
    assert summary.route == (("decode", "decode-0"), ("detokenizer", "detokenizer-0"))
    assert (len(summary.phases), len(summary.error)) == (MAX_KEPT_PHASES, MAX_ERROR_CHARS)
    assert (summary.outcome, summary.tenant) == ("failed", "tenant")
