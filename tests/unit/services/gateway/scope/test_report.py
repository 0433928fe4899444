"""The report of a request that is over counts it."""

from __future__ import annotations

from services.gateway.scope.outcome import Outcome
from services.gateway.scope.report import report_end
from services.gateway.scope.request_timeline import RequestTimeline
from services.gateway.scope.session_state import SessionState
from services.gateway.scope.token_log import TokenLog
from shared.sampling.parameters import SamplingParams
from tests.support.clock import FakeClock
from tests.support.metric import value

BUCKET = "le_16"


def test_no_client_moves_what_the_fleet_is_measured_by() -> None:
    clock = FakeClock()
    timeline = RequestTimeline(clock.unix_us() - 59_000_000, clock)
    clock.advance(0.25)
    timeline.add_row(())
    timeline.mark_delivered()
    clock.advance(0.25)
    timeline.close_timeline()
    state = SessionState(10, model="told", log=TokenLog(5))
    names = ("penstock_time_to_first_token_seconds_sum", "penstock_e2e_request_latency_seconds_sum")
    hops = {"hop": "client", "phase": "client"}
    before = [value(name, model="told", prompt_tokens=BUCKET) for name in names]
    of_client = value("penstock_hop_seconds_count", **hops)
    report_end("r", Outcome.ended("stop", SamplingParams()), state, timeline)
    after = [value(name, model="told", prompt_tokens=BUCKET) for name in names]
    assert [now - then for now, then in zip(after, before, strict=True)] == [0.25, 0.5]
    assert value("penstock_hop_seconds_count", **hops) == of_client
