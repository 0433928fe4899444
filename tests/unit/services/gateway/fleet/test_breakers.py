"""What a gateway knows of instances: by their lives, from its own requests and from its peers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services.gateway.fleet.breaker import FAILURES, FIRST_OPEN_S, STALE_S
from services.gateway.fleet.breakers import LAG_S, MAX_REPORTED, SILENCE_S, Breakers
from shared.bus.fleet import FleetView, InstanceView
from shared.messages import BreakerReport
from tests.integration.gateway_peers import heartbeat
from tests.support import metric
from tests.support.clock import FakeClock

DECODE = {("decode", "decode-0")}


class Known:
    """A fleet view that is told directly, and the breakers of gateway-0 over it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.fleet = FleetView(self.clock)
        self.breakers = Breakers("gateway-0", self.fleet, self.clock)

    def hear(self, role: str, instance: str, **fields: object) -> InstanceView:
        view = self.fleet._state.observe(heartbeat(role, instance, **fields))
        assert view is not None
        return view

    def fail(self, view: InstanceView, times: int = FAILURES, *, silent: bool = False) -> None:
        for number in range(times):
            self.breakers.begin_trial(view, f"r{number}").fail(silent=silent)

    def shunned(self, *views: InstanceView, request_id: str = "new") -> set[tuple[str, str]]:
        return self.breakers.shunned(views, request_id)


@pytest.fixture
def known() -> Iterator[Known]:
    known = Known()
    yield known
    for view in known.fleet.all():  # the samples that were shown
        known.fleet._state._forget((view.heartbeat.role, view.heartbeat.instance))
    known.breakers.report()


def test_who_failed_repeatedly_is_shunned_and_reported(known: Known) -> None:
    view = known.hear("decode", "decode-0")
    known.fail(view)
    assert known.shunned(view) == DECODE
    assert known.breakers.report() == (BreakerReport("decode", "decode-0", 1, "open"),)
    assert metric.value("penstock_breaker_state", instance="decode-0") == 2
    known.clock.advance(FIRST_OPEN_S)
    assert known.shunned(view) == set()
    assert known.breakers.report() == (BreakerReport("decode", "decode-0", 1, "half-open"),)
    assert metric.value("penstock_breaker_state", instance="decode-0") == 1


def test_a_restarted_instance_starts_closed(known: Known) -> None:
    known.fail(known.hear("decode", "decode-0"))
    assert known.shunned(known.hear("decode", "decode-0", incarnation=2)) == set()
    assert known.breakers.report() == ()


def test_an_instance_that_left_is_forgotten_with_its_sample(known: Known) -> None:
    known.fail(known.hear("decode", "decode-0"))
    known.breakers.report()
    known.fleet._state.observe(heartbeat("decode", "decode-0", state="stopped"))
    assert known.breakers.report() == ()
    assert not known.breakers._breakers
    assert metric.value("penstock_breaker_state", instance="decode-0") == 0


def test_nothing_is_told_by_a_request_that_is_not_there_any_more(known: Known) -> None:
    view = known.hear("decode", "decode-0")
    for number in range(FAILURES):
        trial = known.breakers.begin_trial(view, f"r{number}")
        trial.end()
        trial.fail(silent=False)
    assert known.shunned(view) == set()


def test_a_worker_that_begins_well_with_every_request_and_then_fails_it_is_shunned(known: Known) -> None:
    view = known.hear("decode", "decode-0")
    for number in range(FAILURES):
        trial = known.breakers.begin_trial(view, f"r{number}")
        trial.succeed()
        trial.fail(silent=False)
    assert known.shunned(view) == DECODE


def test_requests_that_end_well_in_between_keep_a_worker_in_use(known: Known) -> None:
    view = known.hear("decode", "decode-0")
    for number in range(4 * FAILURES):
        known.breakers.begin_trial(view, f"r{number}").fail(silent=False)
        trial = known.breakers.begin_trial(view, f"good {number}")
        trial.succeed()
        trial.end()
    assert known.shunned(view) == set()


def test_a_silence_that_our_own_lag_explains_blames_nobody(known: Known) -> None:
    view = known.hear("decode", "decode-0")
    known.fleet.own_lag.note(LAG_S)
    known.fail(view, silent=True)
    assert known.shunned(view) == set()
    known.clock.advance(SILENCE_S)
    known.fail(view, silent=True)
    assert known.shunned(view) == DECODE


def test_what_an_instance_said_itself_counts_whatever_our_lag(known: Known) -> None:
    view = known.hear("decode", "decode-0")
    known.fleet.own_lag.note(10.0)
    known.fail(view, silent=False)
    assert known.shunned(view) == DECODE


def test_whom_a_peer_reports_is_shunned_as_long_as_it_does(known: Known) -> None:
    view = known.hear("decode", "decode-0")
    known.hear("gateway", "gateway-1", breakers=(BreakerReport("decode", "decode-0", 1, "open"),))
    assert known.shunned(view) == DECODE
    assert known.breakers.report() == ()  # it is the peer's word, not ours
    known.hear("gateway", "gateway-1", breakers=())
    assert known.shunned(view) == set()


def test_our_own_report_coming_back_is_no_news(known: Known) -> None:
    view = known.hear("decode", "decode-0")
    known.hear("gateway", "gateway-0", breakers=(BreakerReport("decode", "decode-0", 1, "open"),))
    assert known.shunned(view) == set()


def test_a_report_of_a_former_life_counts_for_nothing(known: Known) -> None:
    view = known.hear("decode", "decode-0", incarnation=2)
    known.hear("gateway", "gateway-1", breakers=(BreakerReport("decode", "decode-0", 1, "open"),))
    assert known.shunned(view) == set()


def test_two_gateways_that_report_each_other_do_not_keep_each_other_from_a_probe(known: Known) -> None:
    view = known.hear("decode", "decode-0")
    known.hear("gateway", "gateway-1", breakers=(BreakerReport("decode", "decode-0", 1, "half-open"),))
    known.fail(view)
    known.clock.advance(FIRST_OPEN_S)
    assert known.shunned(view) == set()
    known.breakers.begin_trial(view, "probe").succeed()
    known.breakers.report()
    assert known.shunned(view) == set()  # we know better than the peer's old report
    known.clock.advance(STALE_S)
    known.breakers.report()
    assert known.shunned(view) == DECODE


def test_a_heartbeat_carries_a_bounded_number_of_reports(known: Known) -> None:
    for number in range(MAX_REPORTED + 1):
        known.fail(known.hear("decode", f"decode-{number}"))
    assert len(known.breakers.report()) == MAX_REPORTED
