"""Tasks that are named when they begin, kept while they run, and cancelled until they end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

import structlog

log = structlog.get_logger()

T = TypeVar("T")

CANCEL_AGAIN_S = 0.05


def start_task(work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Run `work` beside its caller, who keeps the task: the event loop alone would let go of it. `name` is
    what a log or a debugger says of it, the same in each run."""
    return asyncio.get_running_loop().create_task(work, name=name)


async def cancel_until_done(*tasks: asyncio.Task[Any]) -> None:
    """Return when all have ended; what they ended with is for the caller to look at, or to leave.

    One cancel is not enough: Python 3.11's `wait_for` swallows one that meets its answer, and so does a
    library that retries. A loop around either would then go on for ever.
    """
    try:
        while left := [task for task in tasks if not task.done()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
    finally:
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()  # seen, so that nobody calls it never retrieved


class StartTask(Protocol):
    """Starts work in the background, under a name, and keeps it."""

    def __call__(self, name: str, work: Coroutine[Any, Any, None]) -> object: ...


class Tasks:
    """Keep every task that runs in the background until it is done, and log what it fails with."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = start_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    async def finish(self, timeout_s: float) -> None:
        """Wait for all, then cancel what is left."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)
        await cancel_until_done(*self._running)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("task_failed", task=task.get_name(), exc_info=task.exception())
