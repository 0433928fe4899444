"""Whom the fleet view suspects when it is our own process that could not listen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from shared.bus import Receive
from shared.bus.fleet import ATTENTIVE_S, SWEEP_S, FleetView, InstanceView
from shared.bus.fleet_state import HEARTBEAT_S, REST_HEARTBEAT_S, SUSPECT_AFTER_S
from shared.bus.subjects import HEARTBEAT_REQUEST_ALL, heartbeat_request
from shared.deadline import ClockOffsets
from shared.messages import HeartbeatRequest, Message
from shared.roles import ROLES
from tests.support.clock import FakeClock
from tests.support.heartbeats import make_heartbeat
from tests.support.wait import until

BEAT = make_heartbeat("decode", "decode-0", host="host", pid=1, model="m", capacity=8)
AT_REST = replace(BEAT, next_ms=round(REST_HEARTBEAT_S * 1e3))


class PlayedBus:
    """Nothing comes in; what goes out is kept."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Message]] = []
        self.offsets = ClockOffsets()
        self.connected = True

    async def serve(self, _subject: str, _receive: Receive) -> None: ...
    async def flush(self) -> None: ...
    async def publish(self, subject: str, message: Message) -> None:
        self.sent.append((subject, message))

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self.reconnected = callback


class Watch:
    """A fleet view that has heard of decode-0, and what it told since. Its sweeps are the test's."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.bus = PlayedBus()
        self.view = FleetView(self.clock)
        self.lost: list[tuple[str, str, str]] = []
        self.view.on_lost(lambda role, instance, why: self.lost.append((role, instance, why)))
        self.view._state.observe(BEAT)
        self.swept_s = self.clock.monotonic_s()

    def decode(self) -> InstanceView:
        view = self.view.get("decode", "decode-0")
        assert view is not None
        return view

    async def sweep(self) -> None:
        self.swept_s = await self.view._sweep_since(self.swept_s, SWEEP_S)

    async def pass_time(self, seconds: float) -> None:
        """With a sweep in time after every SWEEP_S."""
        for _ in range(round(seconds / SWEEP_S)):
            self.clock.advance(SWEEP_S)
            await self.sweep()


@pytest.fixture
async def watch() -> AsyncIterator[Watch]:
    watch = Watch()
    await watch.view.start(watch.bus)  # type: ignore[arg-type]  # the part of a bus that is used
    yield watch
    await watch.view.stop()


async def test_who_is_silent_while_we_listen_is_suspected(watch: Watch) -> None:
    await watch.pass_time(SUSPECT_AFTER_S + SWEEP_S)
    assert watch.lost == [("decode", "decode-0", "suspect")]


async def test_who_is_silent_while_we_are_disconnected_is_not_suspected(watch: Watch) -> None:
    watch.bus.connected = False
    await watch.pass_time(4 * SUSPECT_AFTER_S)
    watch.bus.connected = True
    await watch.sweep()
    assert watch.lost == []


async def test_who_was_nearly_suspected_has_time_to_speak_after_our_reconnection(watch: Watch) -> None:
    await watch.pass_time(SUSPECT_AFTER_S - 2 * SWEEP_S)
    watch.bus.reconnected()  # sooner than a sweep would notice
    await watch.pass_time(SUSPECT_AFTER_S - 2 * SWEEP_S)
    assert watch.lost == []


async def test_a_second_in_which_our_own_loop_stood_still_makes_nobody_a_suspect(watch: Watch) -> None:
    watch.clock.advance(1.0)
    await watch.sweep()
    await watch.pass_time(SUSPECT_AFTER_S / 2)
    assert watch.lost == []


async def test_who_places_nothing_sleeps_until_somebody_may_have_been_silent(watch: Watch) -> None:
    assert watch.view._pause_s() == pytest.approx(SUSPECT_AFTER_S)
    await watch.pass_time(2 * SWEEP_S)
    assert watch.view._pause_s() == pytest.approx(SUSPECT_AFTER_S - 2 * SWEEP_S)
    await watch.pass_time(SUSPECT_AFTER_S)
    assert watch.view._pause_s() == pytest.approx(SUSPECT_AFTER_S)  # nobody is left to be silent


async def test_a_long_sleep_is_no_lag(watch: Watch) -> None:
    pause_s = watch.view._pause_s()
    watch.clock.advance(pause_s)
    await watch.view._sweep_since(watch.swept_s, pause_s)
    assert watch.view.own_lag.within_s(10.0) == 0.0
    assert watch.lost == [("decode", "decode-0", "suspect")]


async def test_who_has_placed_something_looks_often_to_know_its_own_lag(watch: Watch) -> None:
    watch.view._places = True
    assert watch.view._pause_s() > SWEEP_S
    watch.view.expect_work(watch.decode())
    assert watch.view._pause_s() == SWEEP_S
    watch.clock.advance(ATTENTIVE_S)
    assert watch.view._pause_s() == SWEEP_S  # somebody is late
    watch.view._state.observe(BEAT)
    assert watch.view._pause_s() > SWEEP_S
    watch.view.working = lambda: True  # its requests are still here
    assert watch.view._pause_s() == SWEEP_S


async def test_who_begins_to_listen_and_who_comes_back_asks_everybody(watch: Watch) -> None:
    assert watch.bus.sent == [(HEARTBEAT_REQUEST_ALL, HeartbeatRequest(ROLES))]
    watch.bus.reconnected()
    await until(lambda: len(watch.bus.sent) == 2)
    assert watch.bus.sent[1] == watch.bus.sent[0]


ASKED = (heartbeat_request("decode", "decode-0"), HeartbeatRequest())


async def test_one_that_rests_is_asked_when_work_goes_to_it_and_then_suspected_as_soon_as_any(
    watch: Watch,
) -> None:
    await watch.view.stop()  # the sweeps are the test's alone
    watch.view._state.observe(AT_REST)
    await watch.pass_time(1.0)
    for _ in range(2):  # once is enough
        watch.view.expect_work(watch.decode())
    await until(lambda: watch.bus.sent[1:] == [ASKED])
    await watch.pass_time(SUSPECT_AFTER_S - HEARTBEAT_S - SWEEP_S)
    assert watch.lost == []
    await watch.pass_time(2 * SWEEP_S)
    assert watch.lost == [("decode", "decode-0", "suspect")]
    assert watch.bus.sent[1:] == [ASKED]


async def test_one_that_works_is_not_asked(watch: Watch) -> None:
    watch.view.expect_work(watch.decode())
    await watch.pass_time(SUSPECT_AFTER_S - SWEEP_S)
    assert watch.bus.sent[1:] == []


async def test_one_that_rests_is_asked_before_it_is_suspected(watch: Watch) -> None:
    await watch.view.stop()  # the sweeps are the test's alone
    watch.view._state.observe(AT_REST)
    await watch.pass_time(REST_HEARTBEAT_S + HEARTBEAT_S - SWEEP_S)
    assert watch.bus.sent[1:] == []
    await watch.pass_time(2 * SWEEP_S)
    await until(lambda: watch.bus.sent[1:] == [ASKED])
    await watch.pass_time(SUSPECT_AFTER_S - HEARTBEAT_S - 3 * SWEEP_S)
    assert watch.lost == []
    await watch.pass_time(4 * SWEEP_S)
    assert watch.lost == [("decode", "decode-0", "suspect")]


async def test_our_own_lag_is_kept_for_those_who_judge_a_silence(watch: Watch) -> None:
    await watch.pass_time(1.0)
    assert watch.view.own_lag.within_s(10.0) == 0.0
    watch.clock.advance(0.5 + SWEEP_S)  # the loop stood still
    await watch.sweep()
    assert watch.view.own_lag.within_s(10.0) == pytest.approx(0.5)
    watch.bus.reconnected()  # what was said meanwhile is lost
    assert watch.view.own_lag.within_s(10.0) == pytest.approx(0.5 + SUSPECT_AFTER_S)
