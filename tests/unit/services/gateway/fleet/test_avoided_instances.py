"""What one request remembers of instances: by their lives, and no longer than it is true."""

from __future__ import annotations

import pytest

from services.gateway.fleet.avoided_instances import FAILED_S, GONE_S, REFUSED_S, AvoidedInstances
from shared.bus.fleet import InstanceView
from tests.integration.gateway_peers import heartbeat
from tests.support.clock import FakeClock

DECODE = {("decode", "decode-0")}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def avoided(clock: FakeClock) -> AvoidedInstances:
    return AvoidedInstances(clock)


def seen(clock: FakeClock, incarnation: int = 1) -> InstanceView:
    return InstanceView(heartbeat("decode", "decode-0", incarnation=incarnation), clock.monotonic_s())


def test_a_refusal_is_old_with_the_next_heartbeat(avoided: AvoidedInstances, clock: FakeClock) -> None:
    view = seen(clock)
    avoided.add_refused(view, 0.0)
    assert avoided.refused([view]) == DECODE
    clock.advance(0.01)
    assert avoided.refused([seen(clock)]) == set()


def test_a_refusal_is_old_after_a_while_without_one(avoided: AvoidedInstances, clock: FakeClock) -> None:
    view = seen(clock)
    avoided.add_refused(view, 0.0)
    clock.advance(REFUSED_S - 0.01)
    assert avoided.refused([view]) == DECODE
    clock.advance(0.01)
    assert avoided.refused([view]) == set()


def test_room_comes_when_the_first_has_said_and_who_has_not_may_have_some_now(
    avoided: AvoidedInstances, clock: FakeClock
) -> None:
    one, other = seen(clock), InstanceView(heartbeat("decode", "decode-1"), clock.monotonic_s())
    avoided.add_refused(one, 5.0)
    assert avoided.room_in_s([one, other]) == 0.0
    avoided.add_refused(other, 3.0)
    clock.advance(1.0)
    assert avoided.room_in_s([one, other]) == pytest.approx(2.0)


def test_who_failed_or_did_not_answer_is_avoided_for_a_while(
    avoided: AvoidedInstances, clock: FakeClock
) -> None:
    view = seen(clock)
    avoided.add_failed(view)
    avoided.add_gone(view)
    assert (avoided.failed([view]), avoided.not_gone([view])) == (DECODE, [])
    clock.advance(GONE_S)
    assert (avoided.failed([view]), avoided.not_gone([view])) == (DECODE, [view])
    clock.advance(FAILED_S - GONE_S)
    assert avoided.failed([view]) == set()


def test_a_restarted_instance_is_welcome_at_once(avoided: AvoidedInstances, clock: FakeClock) -> None:
    avoided.add_refused(seen(clock), 60.0)
    avoided.add_failed(seen(clock))
    avoided.add_gone(seen(clock))
    anew = seen(clock, incarnation=2)
    assert (avoided.refused([anew]), avoided.failed([anew]), avoided.not_gone([anew])) == (
        set(),
        set(),
        [anew],
    )
    assert avoided.room_in_s([anew]) == 0.0


def test_one_that_has_reconnected_since_it_did_not_answer_is_asked_at_once(
    avoided: AvoidedInstances, clock: FakeClock
) -> None:
    avoided.add_gone(seen(clock))
    assert avoided.not_gone([seen(clock)]) == []
    back = InstanceView(heartbeat("decode", "decode-0", incarnation=1, reconnects=1), clock.monotonic_s())
    assert avoided.not_gone([back]) == [back]
    avoided.add_gone(back)
    assert avoided.not_gone([back]) == []
