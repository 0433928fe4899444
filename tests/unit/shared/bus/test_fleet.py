"""Whom the fleet view suspects when it is our own process that could not listen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from shared.bus import Receive
from shared.bus.fleet import FleetView
from shared.bus.fleet_state import SUSPECT_AFTER_S
from shared.deadline import ClockOffsets
from shared.messages import Heartbeat
from tests.support.clock import FakeClock
from tests.support.wait import until

SWEEP_S = 0.001
STEP_S = 0.05
BEAT = Heartbeat(
    "decode", "decode-0", 1, "ready", 0, "host", 1, "", "m", "", 8, 0, 0, 0, 0, 0, 0.0, 0, b"", b""
)


class PlayedBus:
    """Nothing comes in; every sweep asks whether it is connected."""

    def __init__(self) -> None:
        self.offsets = ClockOffsets()
        self.up = True
        self.sweeps = 0

    @property
    def connected(self) -> bool:
        self.sweeps += 1
        return self.up

    async def serve(self, _subject: str, _receive: Receive) -> None: ...
    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self.reconnected = callback


class Watch:
    """A fleet view that has heard of decode-0, and what it told since."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.bus = PlayedBus()
        self.view = FleetView(self.clock)
        self.lost: list[tuple[str, str, str]] = []
        self.view.on_lost(lambda role, instance, why: self.lost.append((role, instance, why)))
        self.view._state.observe(BEAT)

    async def sweep(self) -> None:
        """One that begins after now has ended."""
        seen = self.bus.sweeps
        await until(lambda: self.bus.sweeps >= seen + 2)

    async def pass_time(self, seconds: float) -> None:
        """With a sweep in time after every step."""
        for _ in range(round(seconds / STEP_S)):
            self.clock.advance(STEP_S)
            await self.sweep()


@pytest.fixture
async def watch(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watch]:
    monkeypatch.setattr("shared.bus.fleet.SWEEP_S", SWEEP_S)
    watch = Watch()
    await watch.view.start(watch.bus)  # type: ignore[arg-type]  # the part of a bus that is used
    await watch.sweep()
    yield watch
    await watch.view.stop()


async def test_who_is_silent_while_we_listen_is_suspected(watch: Watch) -> None:
    await watch.pass_time(SUSPECT_AFTER_S + STEP_S)
    assert watch.lost == [("decode", "decode-0", "suspect")]


async def test_who_is_silent_while_we_are_disconnected_is_not_suspected(watch: Watch) -> None:
    watch.bus.up = False
    await watch.pass_time(4 * SUSPECT_AFTER_S)
    watch.bus.up = True
    await watch.sweep()
    assert watch.lost == []


async def test_who_was_nearly_suspected_has_time_to_speak_after_our_reconnection(watch: Watch) -> None:
    await watch.pass_time(SUSPECT_AFTER_S - 2 * STEP_S)
    watch.bus.reconnected()  # sooner than a sweep would notice
    await watch.pass_time(SUSPECT_AFTER_S - 2 * STEP_S)
    assert watch.lost == []


async def test_a_second_in_which_our_own_loop_stood_still_makes_nobody_a_suspect(watch: Watch) -> None:
    watch.clock.advance(1.0)
    await watch.sweep()
    await watch.pass_time(SUSPECT_AFTER_S / 2)
    assert watch.lost == []
