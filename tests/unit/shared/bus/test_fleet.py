"""Whom the fleet view suspects when it is our own process that could not listen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from shared.bus import Receive
from shared.bus.fleet import SWEEP_S, FleetView
from shared.bus.fleet_state import SUSPECT_AFTER_S
from shared.deadline import ClockOffsets
from shared.messages import Heartbeat
from tests.support.clock import FakeClock

BEAT = Heartbeat(
    "decode", "decode-0", 1, "ready", 0, "host", 1, "", "m", "", 8, 0, 0, 0, 0, 0, 0.0, 0, b"", b""
)


class PlayedBus:
    """Nothing comes in."""

    def __init__(self) -> None:
        self.offsets = ClockOffsets()
        self.connected = True

    async def serve(self, _subject: str, _receive: Receive) -> None: ...
    async def flush(self) -> None: ...
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


async def test_who_places_looks_often_to_know_its_own_lag() -> None:
    view = FleetView(FakeClock(), places=True)
    view._state.observe(BEAT)
    assert view._pause_s() == SWEEP_S


async def test_our_own_lag_is_kept_for_those_who_judge_a_silence(watch: Watch) -> None:
    await watch.pass_time(1.0)
    assert watch.view.own_lag.within_s(10.0) == 0.0
    watch.clock.advance(0.5 + SWEEP_S)  # the loop stood still
    await watch.sweep()
    assert watch.view.own_lag.within_s(10.0) == pytest.approx(0.5)
    watch.bus.reconnected()  # what was said meanwhile is lost
    assert watch.view.own_lag.within_s(10.0) == pytest.approx(0.5 + SUSPECT_AFTER_S)
