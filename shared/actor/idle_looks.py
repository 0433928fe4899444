"""Know when to look for idle memory of an actor, and wake it for that."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from shared.deadline import Clock

LOOK_AFTER_S = 10.0
"""Memory that may become idle is looked at so long after it was used first. An actor that was busy when a
look was due is woken again after as long."""


class IdleLooks:
    """Plan one look at a time, and none where nothing can become idle: an actor that has given all back
    sleeps on. `wake` is called on the event loop, and again where the actor had other things to do then."""

    def __init__(self, wake: Callable[[], None], clock: Clock) -> None:
        self._wake = wake
        self._clock = clock
        self._at_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    @property
    def due(self) -> bool:
        return self._clock.monotonic_s() >= self._at_s

    def used(self) -> None:
        """Something was used that may become idle."""
        if self._at_s == math.inf:
            self.look_in(LOOK_AFTER_S)

    def look_in(self, seconds: float) -> None:
        """Look again after so long; infinity: not before something is used."""
        self.cancel()
        if seconds < math.inf:
            self._at_s = self._clock.monotonic_s() + seconds
            self._wake_in(seconds)

    def cancel(self) -> None:
        """Plan no look."""
        self._at_s = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._wake_now)

    def _wake_now(self) -> None:
        self._wake_in(LOOK_AFTER_S)
        self._wake()
