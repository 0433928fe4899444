"""Say which decode worker a stream is notably better off at, where its own one goes on and is hard pressed.

The margins are wide: a stream that moves pauses for a moment, and none is to be moved back.
"""

from __future__ import annotations

from shared.messages import LONG_STEPS, SHORT_OF_BLOCKS, Heartbeat

STEP_RATIO = 1.5
"""Steps are long where those of another worker take so many times less."""
ROWS_APART = 2
"""A worker with long steps has at least so many requests more than one that is to take a stream from it."""
MANY_REQUESTS = 4
"""A worker without streams says nothing of its steps: one with so many requests lets it have one, to see."""
KEPT_FREE_SHARE = 8
"""One in so many KV blocks of a worker that takes a stream stays free, so that it is not short at once."""


def relieves(relief: str, pressed: Heartbeat, other: Heartbeat, blocks: int) -> bool:
    """Return whether `other` relieves a `pressed` worker by a request for which it needs `blocks`."""
    if other.live + other.queued >= other.capacity:
        return False
    if relief == SHORT_OF_BLOCKS:
        return other.worker.kv_blocks_free - blocks >= other.worker.kv_blocks // KEPT_FREE_SHARE
    return relief == LONG_STEPS and _has_shorter_steps(pressed, other)


def _has_shorter_steps(pressed: Heartbeat, other: Heartbeat) -> bool:
    """Compare what both have measured. Workers of one host share its cores: there one without streams may
    make the steps of both longer, and what it would need is not known before."""
    if pressed.live - other.live - other.queued < ROWS_APART:
        return False
    if other.decode.step_us:
        return pressed.decode.step_us > STEP_RATIO * other.decode.step_us
    return pressed.live >= MANY_REQUESTS and pressed.host != other.host
