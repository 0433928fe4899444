"""An event loop whose time passes only while nothing is to be done, and then at once: timings are exact."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")
SETTLE_S = 0.003
"""What one socket has written another one of this process has after so long, however busy the machine."""
STUCK_S = 30.0


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for no timer: the time is set on instead, once no socket has anything to say."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        ready = super().select(SETTLE_S if timeout is not None else STUCK_S)
        if not ready:
            assert timeout is not None, "nothing is to be done, and nothing is waited for"
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = _JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now_s

    def be_busy(self, seconds: float) -> None:
        """Let time pass in which the loop gets to nothing."""
        self.jumping.now_s += seconds


def run_virtual(main: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def virtual_now_s() -> float:
    return asyncio.get_running_loop().time()
