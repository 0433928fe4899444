"""Pass events of an engine's thread to the event loop in the middle of a step, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from shared.deadline import SYSTEM_CLOCK, Clock

PATIENT_S = 0.001
"""An event may wait for more so long before the loop hears of it."""


class StepEvents:
    """The loop is the one on which this was made.

    Loop and thread compute in turns, so that a loop woken by every layer of a short step makes that step
    longer, and with it the way to the first token. Events wait for each other for PATIENT_S, and those of a
    step's end for `deliver`, which whoever takes the step's result calls behind what somebody waits for.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Callable[[], None]] = deque()
        self._woken_s = 0.0

    # ---- in the engine's thread -------------------------------------------------------------------

    def begin_step(self) -> None:
        self._woken_s = self._clock.monotonic_s()

    def post(self, event: Callable[[], None]) -> None:
        """Have `event` called on the loop, behind all that was posted before."""
        self._waiting.append(event)
        now_s = self._clock.monotonic_s()
        if now_s - self._woken_s >= PATIENT_S:
            self._woken_s = now_s
            self._loop.call_soon_threadsafe(self.deliver)

    # ---- on the loop --------------------------------------------------------------------------------

    def deliver(self) -> None:
        """Call all events that were posted by now."""
        while self._waiting:
            self._waiting.popleft()()
