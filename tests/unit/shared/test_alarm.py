"""An alarm is heard by whoever waits, also one of before; a wait that nobody ends is over in time."""

from __future__ import annotations

import asyncio

from shared.alarm import Alarm

LONG_S = 60.0


async def test_a_ring_ends_the_wait() -> None:
    alarm = Alarm()
    waiting = asyncio.create_task(alarm.wait(LONG_S))
    await asyncio.sleep(0)
    alarm.ring()
    alarm.ring()
    async with asyncio.timeout(LONG_S / 2):
        assert await waiting


async def test_a_ring_of_before_is_heard_until_it_is_cleared() -> None:
    alarm = Alarm()
    alarm.ring()
    assert await alarm.wait(LONG_S)
    assert await alarm.wait(LONG_S)
    alarm.clear()
    assert not await alarm.wait(0.001)


async def test_a_wait_that_nobody_ends_is_over_in_time() -> None:
    assert not await Alarm().wait(0.001)


async def test_a_wait_that_is_cancelled_leaves_nothing() -> None:
    alarm = Alarm()
    waiting = asyncio.create_task(alarm.wait(LONG_S))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    alarm.ring()
    assert waiting.cancelled()
    assert await alarm.wait(LONG_S)
