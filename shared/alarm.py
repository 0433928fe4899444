"""Wait until somebody rings, or for so long."""

from __future__ import annotations

import asyncio


class Alarm:
    """One waits, others ring. Who has rung before the wait is heard at its beginning.

    An `asyncio.Event` inside an `asyncio.timeout` is the same, but raises and catches two exceptions at each
    wait that nobody ends: for who waits all day that is most of what it does.
    """

    def __init__(self) -> None:
        self._rung = False
        self._waiting: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """Return whether somebody waits now."""
        return self._waiting is not None

    def ring(self) -> None:
        """End the wait, or the next one."""
        self._rung = True
        _release(self._waiting)

    def clear(self) -> None:
        """Forget who has rung."""
        self._rung = False

    async def wait(self, seconds: float) -> bool:
        """Return whether somebody rang. It goes on ringing until it is cleared."""
        if self._rung:
            return True
        self._waiting = asyncio.get_running_loop().create_future()
        self.postpone(seconds)
        try:
            await self._waiting
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._waiting = self._timer = None
        return self._rung

    def postpone(self, seconds: float) -> None:
        """End the wait that is on, if there is one, so long from now, unless somebody rings."""
        if self._waiting is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, _release, self._waiting)


def _release(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
