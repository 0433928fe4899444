"""The one thread that may touch an engine. The event loop never computes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from shared.health import Activity
from shared.process.niceness import give_way
from shared.seams.threads import THREADS

P = ParamSpec("P")
T = TypeVar("T")


class EngineThread:
    """Runs calls one after the other, in the order of `start`, away from the event loop. `activity` is busy
    from `start` until the call has ended."""

    def __init__(self, name: str, activity: Activity) -> None:
        self._activity = activity
        self._executor = THREADS.pool(1, name, initializer=give_way)

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
