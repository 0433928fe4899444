"""The one thread that may touch an engine. The event loop never computes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from shared.health import Activity

COMPUTING_NICE = 10
"""How far a thread that computes steps back for those that share its cores. The others only pass things
on, a moment each: one that must wait for a step to end makes every stream late, and every deadline. (At three
times the load on two cores, ends came 1.0 to 1.6 s after their deadlines at p99 without it, 84 ms with 5,
17 to 39 ms with 10.)
"""

P = ParamSpec("P")
T = TypeVar("T")


def give_way() -> None:
    """This thread computes, as will those that it starts: each begins with the priority of its parent. Not so
    the loop of its process, which passes things on as others do."""
    os.nice(COMPUTING_NICE)


class EngineThread:
    """Runs calls one after the other, in the order of `start`, away from the event loop. `activity` is busy
    from `start` until the call has ended."""

    def __init__(self, name: str, activity: Activity) -> None:
        self._activity = activity
        self._executor = ThreadPoolExecutor(1, name, initializer=give_way)

    def start(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Begin `call`; the future ends with its result or its exception."""

        def run() -> T:
            try:
                return call(*args, **kwargs)
            finally:
                self._activity.end()

        self._activity.begin()
        return asyncio.get_running_loop().run_in_executor(self._executor, run)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.start(call, *args, **kwargs)

    async def close(self) -> None:
        """Wait for the call that is running, drop those that wait."""
        await asyncio.to_thread(self._executor.shutdown, wait=True, cancel_futures=True)
