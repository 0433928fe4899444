"""Wake up together: what looks at something at intervals does so at ticks that all processes of a host share.

To wake up costs an idle process more than what it then does: caches are cold, and a core has to be woken. So
whatever may come sooner than its interval comes at the next whole multiple of it on the host's monotonic
clock. Timers of a process then meet in one turn of its loop, and messages of several processes in one turn of
who hears them. Hosts began at different times, so that a fleet of many does not tick at once.
"""

from __future__ import annotations

import asyncio

from shared.deadline import SYSTEM_CLOCK, Clock


def seconds_to_tick(period_s: float, clock: Clock = SYSTEM_CLOCK) -> float:
    """Return how long it is to the next tick of a period: at most as long as that, and never too short.

    Loops count whole milliseconds, rounded down, and so does this: timers that are set for one tick, one
    after the other, run in one turn. What is shorter than a millisecond has no ticks.
    """
    period_ms = round(period_s * 1e3)
    if period_ms < 1:
        return period_s
    return (period_ms - int(clock.monotonic_s() * 1e3) % period_ms) / 1e3


async def until_tick(period_s: float) -> None:
    """Sleep until the next tick of the period."""
    await asyncio.sleep(seconds_to_tick(period_s))
