"""When the loop hears of what an engine's thread tells in the middle of a step."""

from __future__ import annotations

import asyncio

from services.prefill.step_events import PATIENT_S, StepEvents
from tests.support.clock import FakeClock


async def test_events_of_a_short_step_wait_for_whoever_takes_its_result() -> None:
    clock = FakeClock()
    events, heard = StepEvents(clock), list[str]()
    events.begin_step()
    events.post(lambda: heard.append("first"))
    clock.advance(PATIENT_S / 2)
    events.post(lambda: heard.append("second"))
    await asyncio.sleep(0)
    assert heard == []
    events.deliver()
    assert heard == ["first", "second"]


async def test_events_of_a_long_step_wake_the_loop() -> None:
    clock, woken = FakeClock(), asyncio.Event()
    events, heard = StepEvents(clock), list[str]()
    events.begin_step()
    events.post(lambda: heard.append("first"))
    clock.advance(2 * PATIENT_S)
    await asyncio.to_thread(events.post, woken.set)
    async with asyncio.timeout(60):
        await woken.wait()
    assert heard == ["first"]


async def test_a_woken_loop_is_left_alone_for_as_long_again() -> None:
    clock = FakeClock()
    events, heard = StepEvents(clock), list[str]()
    events.begin_step()
    clock.advance(2 * PATIENT_S)
    events.post(lambda: heard.append("first"))
    await asyncio.sleep(0)
    assert heard == ["first"]
    events.post(lambda: heard.append("second"))
    await asyncio.sleep(0)
    assert heard == ["first"]
